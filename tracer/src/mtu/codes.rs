//! The codes of findings, a contract with scripts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Packets are lost and nobody is told.
    Error,
    /// It works for as long as ICMP or fragments get through, or the next restart makes it worse.
    Warning,
}

/// What is wrong.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FindingCode {
    /// One end of a veth sends more than the other takes.
    VethMismatch,
    /// A port of a bridge takes less than what its other ports, or the bridge, send to it.
    BridgePortBelow,
    /// A member of a bond, or the device below a VLAN or a macvlan, takes less than the device above.
    LowerDeviceBelow,
    /// A route says a larger MTU than its device has.
    RouteMtuAboveDevice,
    /// A device has less than the 1280 bytes that IPv6 needs, so that the kernel turns IPv6 off on it.
    BelowIpv6Minimum,
    /// A tunnel's packets, with what it puts around them, are larger than its underlay takes.
    TunnelAboveUnderlay,
    /// The same, where the underlay is a tunnel itself.
    NestedOverlays,
    /// A bridge sends less than all of its ports take.
    BridgeBelowPorts,
    /// What is forwarded is cut to less than its senders send, and no rule clamps the MSS of TCP.
    MissingMssClamp,
    /// A route tells peers a larger MSS than its packets may have.
    AdvmssAboveMtu,
    /// Pods were made when their node's MTU was larger than it is now.
    PodsOlderThanMtu,
    /// A tunnel is several times its own overhead below its underlay, and other devices mark the steps between.
    MtuRatchet,
}

impl FindingCode {
    /// How bad it is.
    pub const fn severity(self) -> Severity {
        match self {
            Self::VethMismatch
            | Self::BridgePortBelow
            | Self::LowerDeviceBelow
            | Self::RouteMtuAboveDevice
            | Self::BelowIpv6Minimum => Severity::Error,
            Self::TunnelAboveUnderlay
            | Self::NestedOverlays
            | Self::BridgeBelowPorts
            | Self::MissingMssClamp
            | Self::AdvmssAboveMtu
            | Self::PodsOlderThanMtu
            | Self::MtuRatchet => Severity::Warning,
        }
    }
}
