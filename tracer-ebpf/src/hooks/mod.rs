//! The hooks, one file per part of the kernel. `tracer/src/probes.rs` lists them with what is missed without them.

mod drop;
mod egress;
mod ingress;
mod tcp;

use tracer_common::event::{Kind, PacketRecord, SkbInfo};

use crate::{
    emit::{header, with_scratch},
    filter::admits,
    skb::{Place, SkBuff, Window},
};

/// Reports a packet at a hook that has nothing else to say, if it is wanted and `place` names a place. Its namespace is 0
/// where it is not known yet.
#[inline(always)]
fn report(
    kind: Kind,
    skb: SkBuff,
    window: &Window,
    netns_inum: u32,
    place: impl FnOnce() -> Option<Place>,
) {
    with_scratch(|scratch| {
        if !admits(scratch, kind, skb, window, netns_inum) {
            return;
        }
        let Some(place) = place() else {
            return;
        };
        let len = scratch.packet.headers_len(scratch.captured.len as u32);
        let record = PacketRecord {
            header: header(kind, &place),
            skb: SkbInfo {
                budget_spent: scratch.budget_spent as u8,
                ..skb.info(window, len as u16)
            },
        };
        // SAFETY: the record lies in the scratch space, which is ours.
        unsafe { scratch.record::<PacketRecord>().write(record) };
        scratch.emit::<PacketRecord>(len);
    });
}
