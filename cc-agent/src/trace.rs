//! `cc-agent trace`: one flow of a running agent, window by window.

use std::{fmt::Write, net::SocketAddr};

use cc_core::status::{FlowView, Snapshot};

/// Finds the flow that the user means: by its slot and generation (`SLOT.GENERATION`), by the
/// socket's cookie (`sk:HEX`, as `ss -e` writes it), or by the address and port of either end.
/// Returns its slot and generation. Of more flows than a status shows, the status is to be one of
/// those that the text means.
///
/// # Errors
///
/// Returns the reason why no flow, or not a single one, is meant.
pub(crate) fn find(text: &str, status: &Snapshot) -> Result<(u32, u32), String> {
    if let Some((slot, generation)) = text.split_once('.')
        && let (Ok(slot), Ok(generation)) = (slot.parse(), generation.parse())
    {
        return Ok((slot, generation));
    }
    let cookie = text.strip_prefix("sk:");
    let cookie = cookie.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let end: Option<SocketAddr> = text.parse().ok();
    if cookie.is_none() && end.is_none() {
        return Err(format!(
            "`{text}` names no flow: expected SLOT.GENERATION, sk:COOKIE or ADDRESS:PORT, as \
             `cc-agent top` shows them"
        ));
    }
    let is_meant = |flow: &&FlowView| {
        cookie == Some(flow.cookie) || end == Some(flow.local) || end == Some(flow.remote)
    };
    let found: Vec<&FlowView> = status.flows.iter().filter(is_meant).collect();
    match found[..] {
        [flow] => Ok((flow.slot, flow.generation)),
        [] if status.is_partial() => Err(format!(
            "{text} is not among the {} flows of {} that the status shows: name it by \
             SLOT.GENERATION",
            status.flows.len(),
            status.live_flows
        )),
        [] => Err(format!("no open flow is {text}")),
        _ => {
            let mut message = format!("{text} is the end of {} flows; name one:", found.len());
            for flow in found.iter().take(10) {
                let FlowView {
                    slot,
                    generation,
                    local,
                    remote,
                    ..
                } = flow;
                // Writing to a string does not fail.
                let _ = write!(message, "\n  {slot}.{generation}  {local} → {remote}");
            }
            Err(message)
        }
    }
}

/// What a trace begins with: the flow's ends, its socket as `ss -e` names it, its network namespace
/// and its cgroup; `None` for a flow that the status does not show.
pub(crate) fn heading((slot, generation): (u32, u32), status: &Snapshot) -> Option<String> {
    let mut flows = status.flows.iter();
    let flow = flows.find(|flow| (flow.slot, flow.generation) == (slot, generation))?;
    Some(format!(
        "flow {slot}.{generation}  {} → {}  sk:{:x}  netns {}  cgroup {}",
        flow.local, flow.remote, flow.cookie, flow.netns, flow.cgroup_id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::status::samples::busy;

    #[test]
    fn a_trace_begins_with_what_pairs_the_flow() {
        let heading = heading((1, 1), &busy(3)).expect("it is there");
        assert_eq!(
            heading,
            "flow 1.1  10.0.0.1:5201 → 10.0.0.2:40001  sk:2  netns 4026531840  cgroup 0"
        );
        assert_eq!(super::heading((1, 2), &busy(3)), None);
    }

    #[test]
    fn a_flow_has_three_names() {
        let status = busy(3);
        assert_eq!(find("7.3", &status), Ok((7, 3)));
        assert_eq!(find("sk:2", &status), Ok((1, 1)));
        assert_eq!(find("10.0.0.2:40002", &status), Ok((2, 1)));
        for (text, part) in [
            ("10.0.0.1:5201", "3 flows; name one:\n  0.1  10.0.0.1:5201"),
            ("10.0.0.2:9", "no open flow"),
            ("10.0.0.2", "expected SLOT"),
            ("sk:xyz", "expected SLOT"),
        ] {
            let error = find(text, &status).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
        let mut partial = busy(1);
        partial.live_flows = 9;
        let error = find("sk:99", &partial).expect_err("it may be one of the others");
        assert!(error.contains("1 flows of 9"), "{error}");
    }
}
