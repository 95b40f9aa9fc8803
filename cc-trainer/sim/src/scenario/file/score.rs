//! The `score` of a scenario: what of its runs is scored.

use std::{ops::Range, time::Duration};

use serde::Deserialize;
use toml::Spanned;

use super::{
    super::{Flow, Rule, Scoring},
    Fault,
    value::*,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoreTable {
    rule: Option<RuleName>,
    flow: Option<Spanned<usize>>,
    #[serde(default)]
    segments_s: Vec<Spanned<[Seconds; 2]>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RuleName {
    Power,
    Share,
    Balance,
}

/// The scoring of a scenario with these flows, from its keys `seconds` and `score`.
pub(super) fn scoring(
    seconds: Option<PositiveSeconds>,
    table: Option<Spanned<ScoreTable>>,
    flows: &[Flow],
) -> Result<Scoring, Fault> {
    let length = seconds.map(PositiveSeconds::duration);
    let Some(table) = table.map(Spanned::into_inner) else {
        return Ok(Scoring {
            length,
            ..Scoring::default()
        });
    };
    if let Some(flow) = &table.flow
        && *flow.get_ref() >= flows.len()
    {
        let last = flows.len().saturating_sub(1);
        return Err(Fault::at(
            flow,
            format!("there is no such flow: they are numbered from 0 to {last}"),
        ));
    }
    let mut segments: Vec<Range<Duration>> = Vec::new();
    for segment in &table.segments_s {
        let [from, to] = segment.get_ref().map(Seconds::duration);
        if from >= to || segments.last().is_some_and(|last| last.end > from) {
            return Err(Fault::at(
                segment,
                "segments are [from, to] in seconds since the flow's start, one after the other, \
                 such as [[0, 3], [3, 10]]",
            ));
        }
        segments.push(from..to);
    }
    Ok(Scoring {
        length,
        rule: table.rule.map(|rule| match rule {
            RuleName::Power => Rule::Power,
            RuleName::Share => Rule::Share,
            RuleName::Balance => Rule::Balance,
        }),
        flow: table.flow.map(Spanned::into_inner),
        segments,
    })
}
