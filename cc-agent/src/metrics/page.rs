//! A page of metrics under construction, in the text format of OpenMetrics 1.0.

use std::fmt;

use cc_core::status::Distribution;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
    },
    metrics::MetricType,
    registry::{Registry, Unit},
};

/// What all names begin with.
const PREFIX: &str = "rlcc";

/// The whole page of what `collector` adds to it.
pub(super) fn encode(collector: impl Collector) -> String {
    let mut registry = registry();
    registry.register_collector(Box::new(collector));
    rendered(&registry)
}

/// An empty page, to which metrics are added.
pub(crate) fn registry() -> Registry {
    Registry::with_prefix(PREFIX)
}

/// The page of what a registry has now.
pub(super) fn rendered(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, registry);
    text
}

/// The page of what `add` puts on an empty one.
#[cfg(test)]
pub(crate) fn page_of<T>(add: impl FnOnce(&mut Registry) -> T) -> String {
    let mut registry = registry();
    let _added = add(&mut registry);
    rendered(&registry)
}

/// A figure of the page of a registry; its name without the common beginning.
#[cfg(test)]
pub(crate) fn value(registry: &Registry, name: &str) -> f64 {
    let page = rendered(registry);
    let samples = tests::parse(&page);
    let value = samples.get(&format!("{PREFIX}_{name}"));
    *value.unwrap_or_else(|| panic!("{name} in {page}"))
}

/// The page, to which families of metrics are added one after the other. A help text says what a
/// rise means.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

impl Page<'_> {
    /// Begins a family whose samples the caller adds, which have labels.
    pub(super) fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &'s str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    /// A figure that rises and falls, without labels.
    pub(super) fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: V,
    ) -> fmt::Result {
        let mut metric = self.family(name, help, unit, MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    /// A count that only rises, without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.family(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
    }

    /// Texts, as labels of a 1.
    pub(super) fn info(
        &mut self,
        name: &str,
        help: &str,
        labels: &impl EncodeLabelSet,
    ) -> fmt::Result {
        let mut metric = self.family(name, help, None, MetricType::Info)?;
        metric.encode_info(labels)
    }
}

/// Adds a distribution of durations in ms to its family, a histogram in seconds.
pub(super) fn add_durations(metric: &mut MetricEncoder<'_>, all: &Distribution) -> fmt::Result {
    add_distribution(metric, all, 1e3)
}

/// Adds a distribution to its family, a histogram whose unit is `scale` of the distribution's.
pub(super) fn add_distribution(
    metric: &mut MetricEncoder<'_>,
    all: &Distribution,
    scale: f64,
) -> fmt::Result {
    // The format's last range has no upper end.
    let upper = all.upper.iter().map(|end| end / scale);
    let upper = upper.chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = upper.zip(all.counts.iter().copied()).collect();
    metric.encode_histogram::<NoLabelSet>(all.sum / scale, all.len(), &buckets, None)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    /// The samples of a page by name and labels. Asserts what the format asks for: that each family
    /// is described before its samples, once, with a type and a help text, and that the page ends.
    pub(in crate::metrics) fn parse(page: &str) -> BTreeMap<String, f64> {
        let mut samples = BTreeMap::new();
        let (mut described, mut family) = (BTreeSet::new(), String::new());
        let mut lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.pop(), Some("# EOF"));
        for line in lines {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name) = (words.next(), words.next().expect("a name").to_owned());
                assert!(name.starts_with("rlcc_"), "{line}");
                assert!(words.next().is_some_and(|text| !text.is_empty()), "{line}");
                if what == Some("HELP") {
                    assert!(described.insert(name.clone()), "{name} twice");
                    family = name;
                } else {
                    assert_eq!(name, family, "{line}");
                }
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(name.starts_with(&family), "{line} after {family}");
            let value = value.parse().expect("a number");
            assert_eq!(samples.insert(name.to_owned(), value), None, "{name} twice");
        }
        samples
    }
}
