//! Leaves addresses and secrets out of text.
//!
//! An address becomes `address-N`, the same one everywhere, so that flows can still be told apart;
//! ports stay. Loopback and unspecified addresses stay too. The host of a URL becomes `host-N`. The
//! value of `NAME=VALUE` goes where the name speaks of a secret, the word after `Bearer` does, and
//! so do the lines of PEM blocks.

use std::{collections::HashMap, net::IpAddr};

/// What stands in the place of a secret.
const SECRET: &str = "(left out)";
/// Parts of names whose values are secrets.
const SECRETS: [&str; 6] = ["token", "secret", "password", "passwd", "key", "credential"];

/// Leaves addresses and secrets out of the texts of one report.
#[derive(Debug, Default)]
pub(super) struct Scrubber {
    keeps_addresses: bool,
    /// What was replaced, by what it was.
    replaced: HashMap<String, String>,
}

impl Scrubber {
    pub(super) fn new(keeps_addresses: bool) -> Self {
        Self {
            keeps_addresses,
            ..Self::default()
        }
    }

    /// Number of addresses and hosts that were replaced so far.
    pub(super) fn replaced(&self) -> usize {
        self.replaced.len()
    }

    /// The text without what is to be left out.
    pub(super) fn scrub(&mut self, text: &str) -> String {
        let mut scrubbed = String::with_capacity(text.len());
        let mut in_pem = false;
        for line in text.split_inclusive('\n') {
            in_pem |= line.contains("-----BEGIN ");
            if in_pem {
                in_pem = !line.contains("-----END ");
                scrubbed.push_str(SECRET);
                scrubbed.push_str(if line.ends_with('\n') { "\n" } else { "" });
                continue;
            }
            let line = without_secrets(line);
            scrubbed.push_str(&match self.keeps_addresses {
                true => line,
                false => {
                    let line = self.without_hosts(&line);
                    self.without_addresses(&line)
                }
            });
        }
        scrubbed
    }

    /// Replaces the hosts of URLs, and what they have of users and passwords.
    fn without_hosts(&mut self, line: &str) -> String {
        let mut rest = line;
        let mut kept = String::new();
        while let Some(start) = rest.find("://") {
            let (head, tail) = rest.split_at(start + "://".len());
            kept.push_str(head);
            let end = tail.find(|c: char| !(c.is_alphanumeric() || "@:.-_%[]~+".contains(c)));
            let (authority, tail) = tail.split_at(end.unwrap_or(tail.len()));
            let host = authority.rsplit('@').next().unwrap_or(authority);
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if port.parse::<u16>().is_ok() => (name, Some(port)),
                _ => (host, None),
            };
            let is_local = address(name.trim_matches(['[', ']'])).is_some_and(is_nobody);
            if name.is_empty() || is_local || name == "localhost" {
                kept.push_str(host);
            } else {
                kept.push_str(&self.name_of("host", name));
                kept.extend(port.iter().flat_map(|port| [":", port]));
            }
            rest = tail;
        }
        kept + rest
    }

    /// Replaces addresses, with or without a port.
    fn without_addresses(&mut self, line: &str) -> String {
        let is_inner = |c: char| c.is_alphanumeric() || matches!(c, ':' | '.' | '_');
        let mut kept = String::with_capacity(line.len());
        let mut rest = line;
        while !rest.is_empty() {
            let length = rest.find(|c: char| !is_inner(c)).unwrap_or(rest.len());
            let (mut word, tail) = rest.split_at(length);
            while let Some((start, end)) = find_address(word) {
                kept.push_str(&word[..start]);
                kept.push_str(&self.name_of("address", &word[start..end]));
                word = &word[end..];
            }
            kept.push_str(word);
            let next = tail.find(is_inner).unwrap_or(tail.len());
            kept.push_str(&tail[..next]);
            rest = &tail[next..];
        }
        kept
    }

    fn name_of(&mut self, kind: &str, what: &str) -> String {
        let number = self.replaced.len() + 1;
        let name = self.replaced.entry(what.to_owned());
        name.or_insert_with(|| format!("{kind}-{number}")).clone()
    }
}

/// Where the longest address in a word is, which others than digits of its own must not touch.
fn find_address(word: &str) -> Option<(usize, usize)> {
    if !word.contains([':', '.']) {
        return None;
    }
    let mut bounds: Vec<usize> = word
        .match_indices([':', '.'])
        .flat_map(|(at, _)| [at, at + 1])
        .chain([0, word.len()])
        .collect();
    bounds.sort_unstable();
    bounds.dedup();
    // An address begins with a digit of its own or with `::`, which nothing precedes.
    let begins = |at: usize| at == 0 || word[..at].ends_with([':', '.']);
    let ends = |at: usize| at == word.len() || word[at..].starts_with([':', '.']);
    let found = bounds
        .iter()
        .enumerate()
        .filter(|&(_, &start)| begins(start))
        .flat_map(|(n, &start)| bounds[n + 1..].iter().map(move |&end| (start, end)))
        .filter(|&(_, end)| ends(end))
        // The longest that IPv6 has (INET6_ADDRSTRLEN).
        .filter(|(start, end)| (2..46).contains(&(end - start)))
        .filter(|&(start, end)| address(&word[start..end]).is_some_and(|ip| !is_nobody(ip)));
    found.max_by_key(|&(start, end)| (end - start, word.len() - start))
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Whether it is the address of no other host.
fn is_nobody(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified()
}

/// Replaces the values of what is named as a secret.
fn without_secrets(line: &str) -> String {
    let mut after_bearer = false;
    let words = line.split_inclusive(char::is_whitespace).map(|word| {
        let bare = word.trim_end();
        let space = &word[bare.len()..];
        let is_secret = std::mem::replace(&mut after_bearer, bare.eq_ignore_ascii_case("bearer"));
        if is_secret && !bare.is_empty() {
            return format!("{SECRET}{space}");
        }
        match bare.split_once('=') {
            Some((name, value)) if !value.is_empty() && names_secret(name) => {
                format!("{name}={SECRET}{space}")
            }
            _ => word.to_owned(),
        }
    });
    words.collect()
}

fn names_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRETS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub(text: &str) -> String {
        Scrubber::new(false).scrub(text)
    }

    #[test]
    fn addresses_get_names_that_tell_them_apart() {
        assert_eq!(
            scrub(
                "10.0.0.1:5201 → 192.0.2.7:443, [2001:db8::1]:80, fe80::1%eth0, 10.0.0.1. \
                 via=::ffff:192.0.2.7 peer:192.0.2.7; never to 10.8.0.0/16, fd00::/8"
            ),
            "address-1:5201 → address-2:443, [address-3]:80, address-4%eth0, address-1. \
             via=address-5 peer:address-2; never to address-6/16, address-7/8"
        );
    }

    #[test]
    fn what_only_looks_like_an_address_stays() {
        let text = "2026-11-24T12:16:21.123456Z cc_agent::serve::be 0.1.0 6.18.5 127.0.0.1:9465 \
                    [::1]:80 0.0.0.0:0 12:30 p50 0.31 ms a.b.c dead::beef_x \"x\":1.5,\n";
        assert_eq!(scrub(text), text);
    }

    #[test]
    fn hosts_of_urls_go_and_so_do_their_users() {
        assert_eq!(
            scrub("grpcs://policy.example.org:7443/a http://127.0.0.1:9465/m unix:///run/x"),
            "grpcs://host-1:7443/a http://127.0.0.1:9465/m unix:///run/x"
        );
        assert_eq!(scrub("(https://me:word@host.test/x)"), "(https://host-1/x)");
        assert_eq!(scrub("grpc://[2001:db8::7]:80"), "grpc://host-1:80");
    }

    #[test]
    fn secrets_are_left_out_with_addresses_too() {
        let text = "a token=abc S3_SECRET_KEY=x=y Bearer abc.def end key= n=1\n-----BEGIN PRIVATE \
                    KEY-----\nMIIE\n-----END PRIVATE KEY-----\n10.0.0.1";
        assert_eq!(
            Scrubber::new(true).scrub(text),
            "a token=(left out) S3_SECRET_KEY=(left out) Bearer (left out) end key= n=1\n(left \
             out)\n(left out)\n(left out)\n10.0.0.1"
        );
    }
}
