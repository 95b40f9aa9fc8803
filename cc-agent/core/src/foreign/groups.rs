//! Sums over the flows of each congestion control in each cgroup: from two readings of them follow
//! rate, loss and delay in between, of the flows that a policy decides for beside the others.
//!
//! Sums only grow, for as long as there are any of a cgroup: flows that close and cgroups that are
//! removed leave theirs. There are sums of a bounded number of cgroups at a time. When all places
//! are taken, a cgroup that has had no flow for [`QUIET_NS`] gives its place to a new one, and
//! where there is none, further cgroups count together as [`OTHER`].
//!
//! A flow names its cgroup by an id. Who knows the paths gives the names a little later
//! ([`Groups::name`]), and what was counted until then is not lost.

use std::{
    collections::{BTreeMap, HashMap},
    ops::AddAssign,
    sync::Arc,
};

use cc_ebpf::{Feature, WindowRecord};

use super::srtt_ms;
use crate::{
    objective::Measured,
    status::{Distribution, RTT_MS},
};

/// The name of all cgroups together for which there was no place. Paths begin with a slash.
pub const OTHER: &str = "other";
/// The name of all cgroups together whose paths are not known: they were removed before anybody
/// looked, or lie outside of what this process sees.
pub const UNKNOWN: &str = "unknown";
/// How long a cgroup keeps its place after its last window, when others need it, ns: ten minutes,
/// so that its last sums were read.
pub const QUIET_NS: u64 = 600_000_000_000;
/// Congestion controls that are told apart in a cgroup. Only root can register any.
const MOST_CONTROLS: usize = 16;

/// How cgroups are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// The depth below the root from which on a cgroup counts as its ancestor of this depth, such
    /// as a container as its pod; `None` tells all apart.
    pub depth: Option<usize>,
    /// Cgroups that there can be sums of at a time, beside [`OTHER`] and [`UNKNOWN`].
    pub places: usize,
}

/// What the flows of a congestion control in a cgroup have done so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Flows that are open at the moment.
    pub open: u64,
    /// Flows that were opened since the start.
    pub opened: u64,
    /// Windows with ACKs, those included that were under way when their flow closed.
    pub windows: u64,
    /// Windows that the application limited ([`WindowRecord::is_application_limited`]).
    pub application_limited_windows: u64,
    /// Payload that was sent, retransmissions included, bytes.
    pub sent_bytes: u64,
    /// Payload that was retransmitted, bytes.
    pub retransmitted_bytes: u64,
    /// What the windows observed. Its time is that in which flows sent or waited for ACKs.
    pub measured: Measured,
    /// Mean smoothed RTTs of the windows.
    pub srtt: Distribution,
    /// Mean queueing delays of the windows.
    pub queueing: Distribution,
}

/// The sums of one congestion control in one cgroup, with their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path of the cgroup from the root of the hierarchy, or [`OTHER`] or [`UNKNOWN`].
    pub cgroup: Arc<str>,
    /// Name of the congestion control, or [`OTHER`].
    pub congestion_control: Arc<str>,
    /// What its flows there have done.
    pub sums: Sums,
}

/// The sums of all groups.
#[derive(Debug)]
pub struct Groups {
    grouping: Grouping,
    /// By id: cgroups with open flows, and those that wait for their names.
    members: HashMap<u64, Member>,
    /// By their names, all that has been named.
    cgroups: BTreeMap<Arc<str>, Cgroup>,
}

/// A cgroup as flows name it, by its id.
#[derive(Debug, Default)]
struct Member {
    open: u64,
    place: Place,
}

/// Where a cgroup's flows are counted.
#[derive(Debug)]
enum Place {
    /// Here, until the cgroup has a name.
    Nameless(Cgroup),
    /// Under this name, together with other cgroups of that name.
    Named(Arc<str>),
}

/// The sums of a cgroup, by congestion control.
#[derive(Debug, Default)]
struct Cgroup {
    controls: BTreeMap<Arc<str>, Sums>,
    /// The time of its newest flow or window, ns.
    newest_ns: u64,
}

impl Groups {
    /// Creates the sums without any flow.
    pub fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            members: HashMap::new(),
            cgroups: BTreeMap::new(),
        }
    }

    /// Counts a flow that has opened.
    pub(super) fn opened(&mut self, cgroup: u64, congestion_control: &Arc<str>, now_ns: u64) {
        self.members.entry(cgroup).or_default().open += 1;
        let sums = self.sums(cgroup, congestion_control, now_ns);
        sums.open += 1;
        sums.opened += 1;
    }

    /// Adds a flow's window, in which that was observed.
    pub(super) fn window(
        &mut self,
        cgroup: u64,
        congestion_control: &Arc<str>,
        window: &WindowRecord,
        measured: Measured,
    ) {
        let sums = self.sums(cgroup, congestion_control, window.header.time_ns);
        sums.add(window, measured);
    }

    /// Counts a flow that has closed.
    pub(super) fn closed(&mut self, cgroup: u64, congestion_control: &Arc<str>) {
        let sums = self.sums(cgroup, congestion_control, 0);
        sums.open = sums.open.saturating_sub(1);
        let member = self.members.entry(cgroup).or_default();
        member.open = member.open.saturating_sub(1);
        if member.open == 0 && matches!(member.place, Place::Named(_)) {
            self.members.remove(&cgroup);
        }
    }

    /// The ids of the cgroups that wait for their names.
    pub fn nameless(&self) -> impl Iterator<Item = u64> {
        let members = self.members.iter();
        members.filter_map(|(id, member)| matches!(member.place, Place::Nameless(_)).then_some(*id))
    }

    /// Names the cgroups that wait for it. `path` returns the path of a cgroup from the root of the
    /// hierarchy by its id, and `None` for one that is not there, which gets the name [`UNKNOWN`].
    pub fn name<'a>(&mut self, now_ns: u64, path: impl Fn(u64) -> Option<&'a str>) {
        for id in self.nameless().collect::<Vec<_>>() {
            let name = self.name_of(path(id), now_ns);
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let is_open = member.open > 0;
            let place = std::mem::replace(&mut member.place, Place::Named(name.clone()));
            if let Place::Nameless(sums) = place {
                self.cgroups.entry(name).or_default().merge(sums);
            }
            if !is_open {
                self.members.remove(&id);
            }
        }
    }

    /// The sums of all groups that have their names.
    pub fn all(&self) -> Vec<Group> {
        let controls = |(name, cgroup): (&Arc<str>, &Cgroup)| {
            let group = |(control, sums): (&Arc<str>, &Sums)| Group {
                cgroup: name.clone(),
                congestion_control: control.clone(),
                sums: sums.clone(),
            };
            cgroup.controls.iter().map(group).collect::<Vec<_>>()
        };
        self.cgroups.iter().flat_map(controls).collect()
    }

    /// How many cgroups have a place of their own at the moment.
    pub fn places_taken(&self) -> usize {
        let names = self.cgroups.keys();
        names.filter(|name| name.starts_with('/')).count()
    }

    /// The name under which the cgroup of this path counts, if there is a place for it.
    fn name_of(&mut self, path: Option<&str>, now_ns: u64) -> Arc<str> {
        let Some(path) = path else {
            return UNKNOWN.into();
        };
        let name = ancestor(path, self.grouping.depth);
        if let Some((known, _)) = self.cgroups.get_key_value(name) {
            return known.clone();
        }
        match self.places_taken() < self.grouping.places || self.free_place(now_ns) {
            true => name.into(),
            false => OTHER.into(),
        }
    }

    /// Takes the place of the cgroup that has been quiet the longest; false when none has been for
    /// long.
    fn free_place(&mut self, now_ns: u64) -> bool {
        let is_quiet = |cgroup: &Cgroup| {
            let is_open = cgroup.controls.values().any(|sums| sums.open > 0);
            !is_open && now_ns.saturating_sub(cgroup.newest_ns) >= QUIET_NS
        };
        let cgroups = self.cgroups.iter();
        let quiet = cgroups.filter(|(name, cgroup)| name.starts_with('/') && is_quiet(cgroup));
        let quietest = quiet.min_by_key(|(_, cgroup)| cgroup.newest_ns);
        let name = quietest.map(|(name, _)| name.clone());
        name.is_some_and(|name| self.cgroups.remove(&name).is_some())
    }

    /// The sums that something at `at_ns` counts towards.
    fn sums(&mut self, cgroup: u64, congestion_control: &Arc<str>, at_ns: u64) -> &mut Sums {
        let cgroup = match &mut self.members.entry(cgroup).or_default().place {
            Place::Nameless(cgroup) => cgroup,
            Place::Named(name) => self.cgroups.entry(name.clone()).or_default(),
        };
        cgroup.newest_ns = cgroup.newest_ns.max(at_ns);
        cgroup.sums(congestion_control)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::Nameless(Cgroup::default())
    }
}

impl Cgroup {
    fn sums(&mut self, congestion_control: &Arc<str>) -> &mut Sums {
        let is_full = self.controls.len() >= MOST_CONTROLS;
        let name = match is_full && !self.controls.contains_key(congestion_control) {
            true => OTHER.into(),
            false => congestion_control.clone(),
        };
        self.controls.entry(name).or_default()
    }

    fn merge(&mut self, other: Self) {
        self.newest_ns = self.newest_ns.max(other.newest_ns);
        for (congestion_control, sums) in other.controls {
            *self.sums(&congestion_control) += &sums;
        }
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            open: 0,
            opened: 0,
            windows: 0,
            application_limited_windows: 0,
            sent_bytes: 0,
            retransmitted_bytes: 0,
            measured: Measured::default(),
            srtt: Distribution::new(&RTT_MS),
            queueing: Distribution::new(&RTT_MS),
        }
    }
}

impl Sums {
    fn add(&mut self, window: &WindowRecord, measured: Measured) {
        self.measured += measured;
        if window.acks == 0 {
            return;
        }
        let sum = |feature: Feature| window.features.sum[feature as usize];
        self.windows += 1;
        self.application_limited_windows += u64::from(window.is_application_limited());
        self.sent_bytes += sum(Feature::Sent);
        self.retransmitted_bytes += sum(Feature::Retransmitted);
        self.srtt.add(srtt_ms(window));
        self.queueing.add(measured.delay_ms());
    }
}

impl AddAssign<&Self> for Sums {
    fn add_assign(&mut self, other: &Self) {
        self.open += other.open;
        self.opened += other.opened;
        self.windows += other.windows;
        self.application_limited_windows += other.application_limited_windows;
        self.sent_bytes += other.sent_bytes;
        self.retransmitted_bytes += other.retransmitted_bytes;
        self.measured += other.measured;
        self.srtt.merge(&other.srtt);
        self.queueing.merge(&other.queueing);
    }
}

/// The path, cut after so many components.
fn ancestor(path: &str, depth: Option<usize>) -> &str {
    let Some(depth) = depth else {
        return path;
    };
    // Before each component is a slash, and so is after the last one that is kept.
    let end = path.match_indices('/').nth(depth);
    end.map_or(path, |(end, _)| &path[..end])
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use cc_ebpf::{FEATURES, Header};
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn groups(depth: Option<usize>, places: usize) -> Groups {
        Groups::new(Grouping { depth, places })
    }

    /// A window of one ACK that acknowledges so many bytes.
    fn window(at_ns: u64, acked: u32) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        window.header = Header::of::<WindowRecord>(0, 1, at_ns);
        window.start_ns = at_ns - SECOND / 10;
        let mut features = [0; FEATURES];
        features[Feature::Acked as usize] = acked;
        features[Feature::Sent as usize] = acked + 100;
        features[Feature::Retransmitted as usize] = 100;
        features[Feature::Lost as usize] = 100;
        features[Feature::SmoothedRtt as usize] = 25_000;
        features[Feature::Delay as usize] = 5_000;
        window.add(&features);
        window
    }

    fn add(groups: &mut Groups, cgroup: u64, control: &str, at_ns: u64) {
        let window = window(at_ns, 1_000);
        groups.window(cgroup, &control.into(), &window, Measured::of(&window));
    }

    /// Paths of the ids that the tests use.
    fn path(id: u64) -> Option<&'static str> {
        let paths = ["/", "/pods/a/one", "/pods/a/two", "/pods/b/one", "/web"];
        id.checked_sub(1)
            .and_then(|index| paths.get(index as usize).copied())
    }

    fn sums_of(groups: &Groups, cgroup: &str, control: &str) -> Option<Sums> {
        let is_it =
            |group: &Group| &*group.cgroup == cgroup && &*group.congestion_control == control;
        groups.all().into_iter().find(is_it).map(|group| group.sums)
    }

    fn names(groups: &Groups) -> Vec<String> {
        let all = groups.all();
        let names = all.iter().map(|group| group.cgroup.to_string());
        names.collect()
    }

    #[test]
    fn controls_stand_beside_each_other_in_their_cgroup() {
        let mut groups = groups(None, 8);
        for (cgroup, control) in [(5, "rlcc"), (5, "cubic"), (5, "cubic"), (1, "cubic")] {
            groups.opened(cgroup, &control.into(), SECOND);
            add(&mut groups, cgroup, control, 2 * SECOND);
        }
        assert_eq!(groups.all(), [], "nothing has a name yet");
        groups.name(3 * SECOND, path);
        assert_eq!(names(&groups), ["/", "/web", "/web"]);
        let cubic = sums_of(&groups, "/web", "cubic").expect("it is there");
        assert_eq!((cubic.open, cubic.opened, cubic.windows), (2, 2, 2));
        assert_eq!(cubic.measured.acked_bytes, 2_000);
        assert_eq!(cubic.measured.ns, SECOND / 5);
        assert_eq!((cubic.sent_bytes, cubic.retransmitted_bytes), (2_200, 200));
        assert_eq!((cubic.queueing.len(), cubic.queueing.sum), (2, 10.0));
        assert_eq!((cubic.srtt.len(), cubic.srtt.sum), (2, 50.0));
        assert_eq!(groups.places_taken(), 2);
    }

    #[test]
    fn what_is_deeper_counts_as_its_ancestor() {
        let mut groups = groups(Some(2), 8);
        for id in 1..=5 {
            groups.opened(id, &"cubic".into(), SECOND);
        }
        groups.name(SECOND, path);
        assert_eq!(names(&groups), ["/", "/pods/a", "/pods/b", "/web"]);
        let both = sums_of(&groups, "/pods/a", "cubic").expect("it is there");
        assert_eq!(both.open, 2);
        for (path, depth, expected) in [
            ("/", Some(1), "/"),
            ("/a/b/c", Some(1), "/a"),
            ("/a/b/c", Some(3), "/a/b/c"),
            ("/a/b/c", Some(9), "/a/b/c"),
            ("/a/b/c", None, "/a/b/c"),
        ] {
            assert_eq!(ancestor(path, depth), expected);
        }
    }

    #[test]
    fn a_cgroup_that_nobody_knows_has_a_name_too() {
        let mut groups = groups(None, 8);
        for id in [77, 78] {
            groups.opened(id, &"cubic".into(), SECOND);
        }
        groups.closed(77, &"cubic".into());
        groups.name(SECOND, path);
        let unknown = sums_of(&groups, UNKNOWN, "cubic").expect("it is there");
        assert_eq!((unknown.open, unknown.opened), (1, 2));
        assert_eq!(groups.places_taken(), 0, "it needs no place");
        assert_eq!(groups.members.len(), 1, "of open flows only");
    }

    #[test]
    fn a_cgroup_that_comes_again_goes_on_under_its_name() {
        let mut groups = groups(Some(1), 8);
        // As when a service is restarted: another id, the same path.
        for id in [2, 4] {
            groups.opened(id, &"cubic".into(), SECOND);
            groups.name(SECOND, path);
            add(&mut groups, id, "cubic", 2 * SECOND);
            groups.closed(id, &"cubic".into());
        }
        let sums = sums_of(&groups, "/pods", "cubic").expect("it is there");
        assert_eq!((sums.open, sums.opened, sums.windows), (0, 2, 2));
        assert!(groups.members.is_empty());
    }

    #[test]
    fn places_are_bounded_and_the_quietest_gives_way() {
        let mut groups = groups(None, 2);
        for id in [2, 3, 4, 5] {
            groups.opened(id, &"cubic".into(), id * SECOND);
            groups.name(id * SECOND, path);
        }
        assert_eq!(names(&groups), ["/pods/a/one", "/pods/a/two", OTHER]);
        assert_eq!(
            sums_of(&groups, OTHER, "cubic").map(|sums| sums.open),
            Some(2)
        );
        for id in [2, 3, 4] {
            groups.closed(id, &"cubic".into());
        }
        // A flow that is open keeps counting where it has begun.
        add(&mut groups, 5, "cubic", 6 * SECOND);
        groups.opened(4, &"cubic".into(), 7 * SECOND);
        groups.name(7 * SECOND, path);
        assert_eq!(
            names(&groups),
            ["/pods/a/one", "/pods/a/two", OTHER],
            "not quiet for long"
        );
        groups.closed(4, &"cubic".into());
        let later = 2 * SECOND + QUIET_NS;
        groups.opened(4, &"cubic".into(), later);
        groups.name(later, path);
        assert_eq!(names(&groups), ["/pods/a/two", "/pods/b/one", OTHER]);
        let other = sums_of(&groups, OTHER, "cubic").expect("it is there");
        assert_eq!((other.open, other.opened, other.windows), (1, 3, 1));
    }

    #[test]
    fn congestion_controls_are_bounded() {
        let mut groups = groups(None, 8);
        let controls: Vec<Arc<str>> = (0..20).map(|n| format!("cc{n:02}").into()).collect();
        for control in &controls {
            groups.opened(5, control, SECOND);
        }
        groups.name(SECOND, path);
        assert_eq!(groups.all().len(), MOST_CONTROLS + 1);
        for control in &controls {
            groups.closed(5, control);
        }
        assert!(groups.all().iter().all(|group| group.sums.open == 0));
    }

    proptest! {
        /// Whatever happens, every flow and every byte is counted once, no sum ever falls while its
        /// cgroup has its place, and the number of groups is bounded.
        #[test]
        fn nothing_is_lost_and_nothing_falls(
            steps in proptest::collection::vec((0u8..4, 1u64..9, 0usize..3), 0..200),
        ) {
            let mut groups = groups(Some(2), 2);
            let controls: [Arc<str>; 3] = ["rlcc".into(), "cubic".into(), "bbr".into()];
            let mut open: Vec<(u64, usize)> = Vec::new();
            let (mut opened, mut windows, mut before) = (0, 0, Vec::new());
            for (step, (what, id, control)) in steps.into_iter().enumerate() {
                // Too early for any to be quiet for long.
                let now = SECOND * (1 + step as u64);
                match what {
                    0 => {
                        groups.opened(id, &controls[control], now);
                        open.push((id, control));
                        opened += 1;
                    }
                    1 if !open.is_empty() => {
                        let (id, control) = open[id as usize % open.len()];
                        add(&mut groups, id, &controls[control], now);
                        windows += 1;
                    }
                    2 if !open.is_empty() => {
                        let (id, control) = open.swap_remove(id as usize % open.len());
                        groups.closed(id, &controls[control]);
                    }
                    _ => {}
                }
                if what == 3 {
                    groups.name(now, path);
                }
                let all = groups.all();
                for Group { cgroup, congestion_control, sums } in &before {
                    let now = sums_of(&groups, cgroup, congestion_control).expect("it stays");
                    prop_assert!(now.opened >= sums.opened && now.windows >= sums.windows);
                    prop_assert!(now.measured.acked_bytes >= sums.measured.acked_bytes);
                }
                prop_assert!(all.len() <= (2 + 2) * 3);
                before = all;
            }
            groups.name(SECOND, path);
            let all = groups.all();
            let sum = |part: fn(&Sums) -> u64| all.iter().map(|g| part(&g.sums)).sum::<u64>();
            prop_assert_eq!(sum(|sums| sums.open), open.len() as u64);
            prop_assert_eq!(sum(|sums| sums.opened), opened);
            prop_assert_eq!(sum(|sums| sums.measured.acked_bytes), windows * 1_000);
        }
    }
}
