//! The ways in which a lab is broken, in the words of the tools that break it.

use anyhow::Result;
use tracer::lab::Netns;

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

/// Takes every rule of [`netfilter`] away again.
pub fn heal_netfilter(netns: &Netns) -> Result<()> {
    Ok(netns.nft("delete table inet fault\n")?)
}
