//! Which connections the datapath serves, as its maps and constants have it.

use cc_ebpf::Verdict;

use crate::{device::Device, network::Network};

/// Which connections are served, and which are left to another congestion control. By default, all
/// are served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// The verdict on each network. Of those that an address belongs to, the longest decides.
    pub networks: Vec<(Network, Verdict)>,
    /// The verdict on each device.
    pub devices: Vec<(Device, Verdict)>,
    /// The verdict on devices that are not listed.
    pub other_devices: Verdict,
    /// Name of the congestion control to which connections are left; its bytes beyond the
    /// fifteenth are not used.
    pub other: String,
}

impl Scope {
    /// Whether it leaves connections to another congestion control.
    pub fn leaves(&self) -> bool {
        let networks = self.networks.iter().map(|&(_, verdict)| verdict);
        let devices = self.devices.iter().map(|&(_, verdict)| verdict);
        let mut all = networks.chain(devices).chain([self.other_devices]);
        all.any(|verdict| verdict != Verdict::Serve)
    }

    /// What the programs have as constants.
    pub(super) fn constants(&self) -> cc_ebpf::Scope {
        let mut other = [0; 16];
        let length = self.other.len().min(15);
        other[..length].copy_from_slice(&self.other.as_bytes()[..length]);
        let asks_device = !self.devices.is_empty() || self.other_devices != Verdict::Serve;
        cc_ebpf::Scope {
            lists_networks: u32::from(!self.networks.is_empty()),
            lists_devices: u32::from(asks_device),
            other_devices: self.other_devices as u32,
            other: bytemuck::cast(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_listed_nothing_is_looked_up() {
        assert_eq!(Scope::default().constants(), cc_ebpf::Scope::ALL);
        assert!(!Scope::default().leaves());
        let mut scope = Scope {
            devices: vec![(Device::LOOPBACK, Verdict::ServeChosen)],
            other: "cubic".into(),
            ..Scope::default()
        };
        assert!(scope.leaves());
        let constants = scope.constants();
        assert_eq!((constants.lists_networks, constants.lists_devices), (0, 1));
        assert_eq!(
            bytemuck::bytes_of(&constants.other),
            b"cubic\0\0\0\0\0\0\0\0\0\0\0"
        );
        scope.devices = Vec::new();
        scope.other_devices = Verdict::Leave;
        assert!(scope.leaves() && scope.constants().lists_devices == 1);
        let networks = vec![(Network::IPV4, Verdict::Serve)];
        scope = Scope {
            networks,
            ..Scope::default()
        };
        assert!(!scope.leaves() && scope.constants().lists_networks == 1);
    }
}
