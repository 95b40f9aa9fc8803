//! What a running agent hands over to its successor, so that neither its flows nor the name of its
//! congestion control are ever without an owner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Error;

/// The name of the link among the descriptors; those of maps are in capital letters.
const LINK: &str = "link";

/// The descriptors of a datapath that is registered. As long as anybody holds the link, the name is
/// registered.
#[derive(Debug)]
pub struct Inheritance {
    /// The link that registers the congestion control.
    pub(super) link: OwnedFd,
    /// The maps that flows and agent share, by their names.
    pub(super) maps: Vec<(String, OwnedFd)>,
}

impl Inheritance {
    /// Takes the descriptors that came with these names.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no link among them, or a name without a descriptor.
    pub fn of(names: Vec<String>, descriptors: Vec<OwnedFd>) -> Result<Self, Error> {
        if names.len() != descriptors.len() {
            return Err(Error::Inheritance(format!(
                "it has sent {} descriptors for {} names",
                descriptors.len(),
                names.len()
            )));
        }
        let (mut links, maps): (Vec<_>, Vec<_>) = names
            .into_iter()
            .zip(descriptors)
            .partition(|(name, _)| name == LINK);
        match links.pop() {
            Some((_, link)) => Ok(Self { link, maps }),
            None => Err(Error::Inheritance("it has sent no link".into())),
        }
    }

    /// The names of the descriptors, and these in the same order.
    pub fn parts(&self) -> (Vec<String>, Vec<BorrowedFd<'_>>) {
        let maps = self
            .maps
            .iter()
            .map(|(name, fd)| (name.clone(), fd.as_fd()));
        let link = (LINK.to_owned(), self.link.as_fd());
        maps.chain([link]).unzip()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let open = |_| File::open("/dev/null").expect("it is there").into();
        (0..count).map(open).collect()
    }

    #[test]
    fn what_was_sent_is_told_apart_by_its_names() {
        let names = ["CC_FLOWS", LINK, "CC_SETTINGS"]
            .map(str::to_owned)
            .to_vec();
        let found = Inheritance::of(names, descriptors(3)).expect("all is there");
        let (names, sent) = found.parts();
        assert_eq!(names, ["CC_FLOWS", "CC_SETTINGS", LINK]);
        assert_eq!(sent.len(), 3);
    }

    #[test]
    fn an_incomplete_inheritance_is_refused() {
        let names = vec![LINK.to_owned(), "CC_FLOWS".to_owned()];
        let error = Inheritance::of(names, descriptors(1)).expect_err("one is missing");
        assert!(
            error.to_string().contains("1 descriptors for 2 names"),
            "{error}"
        );
        let error = Inheritance::of(vec!["CC_FLOWS".into()], descriptors(1));
        let error = error.expect_err("no link").to_string();
        assert!(
            error.contains("no link") && error.contains("without --takeover"),
            "{error}"
        );
    }
}
