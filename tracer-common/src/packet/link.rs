//! Ethernet and the VLAN tags inside the frame.

use network_types::{
    eth::{EthHdr, EtherType},
    vlan::VlanHdr,
};

use super::{Next, Packet, Reader, Status, VLANS_MAX};

pub(super) const IPV4: u16 = u16::from_be(EtherType::Ipv4 as u16);
pub(super) const IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);
const VLAN: u16 = u16::from_be(EtherType::Ieee8021q as u16);
const SERVICE_VLAN: u16 = u16::from_be(EtherType::Ieee8021ad as u16);

/// Reads the Ethernet header at `out.next_offset`; the tags are kept only for the outermost frame.
#[inline(always)]
pub(super) fn parse<R: Reader>(reader: &R, outermost: bool, out: &mut Packet) -> Status {
    let mut at = usize::from(out.next_offset);
    let Some(header) = reader.bytes::<{ EthHdr::LEN }>(at) else {
        return Status::Truncated;
    };
    let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
    at += EthHdr::LEN;
    for tag in 0..VLANS_MAX {
        if ethertype != VLAN && ethertype != SERVICE_VLAN {
            break;
        }
        let Some(header) = reader.bytes::<{ VlanHdr::LEN }>(at) else {
            return Status::Truncated;
        };
        if outermost {
            out.vlan_tci[tag] = u16::from_be_bytes([header[0], header[1]]);
            out.vlan_count = tag as u8 + 1;
        }
        ethertype = u16::from_be_bytes([header[2], header[3]]);
        at += VlanHdr::LEN;
    }
    out.ethertype = ethertype;
    out.next_offset = at as u16;
    out.next = match ethertype {
        IPV4 => Next::Ipv4,
        IPV6 => Next::Ipv6,
        VLAN | SERVICE_VLAN => return Status::TooDeep,
        _ => Next::Nothing,
    };
    Status::Complete
}
