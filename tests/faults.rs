//! The ways in which a lab is broken, in the words of the tools that break it.

use anyhow::Result;
use tracer::lab::Netns;

use crate::pairs::Pair;

/// nftables: a SYN that asks for a connection.
pub const SYN: &str = "tcp flags & (fin|syn|rst|ack) == syn";

/// nftables: a SYN-ACK.
pub const SYN_ACK: &str = "tcp flags & (fin|syn|rst|ack) == syn|ack";

/// nftables: everything of an established connection but a RST.
pub const ACK: &str = "tcp flags & (syn|rst|ack) == ack";

/// Applies a rule at a netfilter hook (`forward`, `output`, …) of a namespace.
pub fn netfilter(netns: &Netns, hook: &str, rule: &str) -> Result<()> {
    netns.nft(&format!(
        "add table inet fault\n\
         add chain inet fault {hook} {{ type filter hook {hook} priority 0; }}\n\
         add rule inet fault {hook} {rule}\n"
    ))?;
    Ok(())
}

/// Applies a rule at a device's own hook: `ingress` or `egress`.
pub fn at_device(netns: &Netns, hook: &str, device: &str, rule: &str) -> Result<()> {
    netns.nft(&format!(
        "add table netdev fault\n\
         add chain netdev fault {hook}-{device} {{ type filter hook {hook} device {device} priority 0; }}\n\
         add rule netdev fault {hook}-{device} {rule}\n"
    ))?;
    Ok(())
}

/// Takes every rule of [`netfilter`] away again.
pub fn heal_netfilter(netns: &Netns) -> Result<()> {
    Ok(netns.nft("delete table inet fault\n")?)
}

/// `ip` or `ip6`: the word of nftables for these addresses.
fn family(pair: &Pair) -> &'static str {
    if pair.client.is_ipv4() { "ip" } else { "ip6" }
}

impl Pair {
    /// nftables: a packet of this client.
    pub fn from_client(&self) -> String {
        let (family, server) = (family(self), self.server.ip());
        format!("{family} saddr {} {family} daddr {server}", self.client)
    }

    /// nftables: a packet of this server.
    pub fn from_server(&self) -> String {
        let (family, server) = (family(self), self.server.ip());
        format!("{family} saddr {server} {family} daddr {}", self.client)
    }

    /// nftables: the SYN.
    pub fn syn(&self) -> String {
        format!("{} {SYN}", self.from_client())
    }

    /// nftables: the SYN-ACK.
    pub fn syn_ack(&self) -> String {
        format!("{} {SYN_ACK}", self.from_server())
    }

    /// nftables: the ACK that ends the handshake, and all that the client sends afterwards.
    pub fn ack(&self) -> String {
        format!("{} {ACK}", self.from_client())
    }
}
