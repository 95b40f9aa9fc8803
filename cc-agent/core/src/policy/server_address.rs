//! The address of a policy server.

use std::{fmt, net::IpAddr, str::FromStr};

/// The address of a policy server, as on a command line: `grpc://HOST:PORT`, or `grpcs://HOST:PORT`
/// with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The host's name or IP address; an IPv6 address without its brackets.
    pub host: String,
    /// The TCP port that the server listens on, above 0.
    pub port: u16,
}

impl ServerAddress {
    /// Whether the text is meant to be an address of a server.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with("grpc://") || text.starts_with("grpcs://")
    }

    /// Whether the host is this one: `localhost`, or an address of the loopback network.
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (scheme, authority) = text.split_once("://")?;
            let tls = match scheme {
                "grpc" => false,
                "grpcs" => true,
                _ => return None,
            };
            let (host, port) = authority.rsplit_once(':')?;
            let inner = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            let host = match inner {
                Some(ip) if ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => ip,
                None if !host.is_empty() && host.chars().all(plain) => host,
                _ => return None,
            };
            Some(Self {
                tls,
                host: host.to_owned(),
                port: port.parse().ok().filter(|&port| port > 0)?,
            })
        };
        parse().ok_or_else(|| format!("`{text}`: expected grpc://HOST:PORT or grpcs://HOST:PORT"))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "grpcs" } else { "grpc" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_know_this_host() {
        for (text, loopback) in [
            ("grpc://localhost:1", true),
            ("grpc://127.0.0.2:1", true),
            ("grpc://[::1]:1", true),
            ("grpc://10.0.0.1:1", false),
            ("grpcs://localhost.example:1", false),
        ] {
            let address: ServerAddress = text.parse().expect(text);
            assert_eq!(address.is_loopback(), loopback, "{text}");
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "grpc://",
            "grpc://:1",
            "http://a:1",
            "grpc://[::1:1",
            "grpc://a:b:1",
            "grpc://a/b:1",
        ] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
