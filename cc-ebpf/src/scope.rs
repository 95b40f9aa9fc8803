//! Which connections the congestion control serves, and which it leaves to another one.

use bytemuck::{Pod, Zeroable};

/// What becomes of the connections to a network, or over a device. Of two verdicts on one
/// connection the stricter, which is the greater, holds.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// They are served, whoever has chosen the congestion control for the socket, or nobody.
    #[default]
    Serve = 0,
    /// They are served if somebody has chosen the congestion control for the socket, and otherwise
    /// left to another one.
    ServeChosen = 1,
    /// They are left to another congestion control.
    Leave = 2,
}

/// The part of the scope that one load of the programs has as constants. Verdicts on networks and
/// devices are in maps; where nothing is listed, the verifier drops the look-ups.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Scope {
    /// 1 when the map of networks has entries, otherwise 0.
    pub lists_networks: u32,
    /// 1 when the map of devices has entries, or `other_devices` is not [`Verdict::Serve`];
    /// otherwise 0.
    pub lists_devices: u32,
    /// The number of the [`Verdict`] on devices that are not in the map.
    pub other_devices: u32,
    /// Name of the congestion control to which connections are left, NUL-padded.
    pub other: [u32; 4],
}

impl Scope {
    /// The scope that leaves no connection.
    pub const ALL: Self = Self {
        lists_networks: 0,
        lists_devices: 0,
        other_devices: Verdict::Serve as u32,
        other: [0; 4],
    };

    /// Whether a connection is left to another congestion control, by the numbers of the verdicts
    /// on its network and its device. `is_chosen` says whether somebody has chosen the congestion
    /// control for the socket.
    #[inline(always)]
    pub fn leaves(network: u32, device: u32, is_chosen: bool) -> bool {
        const SERVE_CHOSEN: u32 = Verdict::ServeChosen as u32;
        const LEAVE: u32 = Verdict::Leave as u32;
        let stricter = if network > device { network } else { device };
        stricter >= LEAVE || (stricter == SERVE_CHOSEN && !is_chosen)
    }
}

/// The name of a device with nothing but NULs after the first: the kernel does not clear what a
/// longer name has left there (`dev_change_name`, net/core/dev.c).
#[inline(always)]
pub fn device_name(words: [u32; 4]) -> [u32; 4] {
    const LOW: u32 = 0x0101_0101;
    let mut name = [0; 4];
    let mut index = 0;
    while index < 4 {
        // The first byte of a name is the lowest of its word on every machine that this is for.
        let word = u32::from_le(words[index]);
        // The highest bit of each byte that is 0, exact up to the first of them.
        let zeros = word.wrapping_sub(LOW) & !word & (LOW << 7);
        let first = zeros & zeros.wrapping_neg();
        if first != 0 {
            name[index] = (word & (first >> 7).wrapping_sub(1)).to_le();
            break;
        }
        name[index] = words[index];
        index += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_first_nul_is_no_part_of_a_name() {
        let words = |bytes: [u8; 16]| bytemuck::cast::<[u8; 16], [u32; 4]>(bytes);
        for found in [
            *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            *b"eth0\0s31f6\0\0\0\0\0\0",
            *b"lo\0x\x01\0yz\xff\0\0\0\0\0\0\0",
            *b"wg\x80\x01\x01\xff\0\x01\0\0\0\0\0\0\0\0",
            *b"fifteen_letters\0",
            *b"\0eth0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            let length = found.iter().position(|&byte| byte == 0).expect("a NUL");
            let mut padded = [0; 16];
            padded[..length].copy_from_slice(&found[..length]);
            assert_eq!(device_name(words(found)), words(padded), "{found:?}");
        }
    }

    #[test]
    fn the_stricter_verdict_holds() {
        use Verdict::{Leave, Serve, ServeChosen};
        for (network, device, of_default, of_chosen) in [
            (Serve, Serve, false, false),
            (ServeChosen, Serve, true, false),
            (Serve, ServeChosen, true, false),
            (ServeChosen, ServeChosen, true, false),
            (Leave, Serve, true, true),
            (Serve, Leave, true, true),
            (ServeChosen, Leave, true, true),
        ] {
            let leaves = |is_chosen| Scope::leaves(network as u32, device as u32, is_chosen);
            assert_eq!(leaves(false), of_default, "{network:?} {device:?}");
            assert_eq!(leaves(true), of_chosen, "{network:?} {device:?}");
        }
    }
}
