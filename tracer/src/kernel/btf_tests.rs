//! The reader on BTF that is written here by hand, on the same BTF with bytes changed, and on the running kernel's.

use proptest::prelude::*;

use super::*;

/// Writes BTF the way `btf.rst` describes it.
#[derive(Default)]
struct Writer {
    types: Vec<u32>,
    strings: Vec<u8>,
    count: u32,
}

impl Writer {
    fn new() -> Self {
        Self {
            strings: vec![0],
            ..Self::default()
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    fn ty(
        &mut self,
        name: &str,
        kind: u8,
        flag: bool,
        size_or_target: u32,
        tail: &[[u32; 3]],
    ) -> u32 {
        let name = self.string(name);
        let count = u32::try_from(tail.len()).unwrap();
        let info = u32::from(flag) << 31 | u32::from(kind) << 24 | count;
        self.types.extend([name, info, size_or_target]);
        let words = match kind {
            KIND_ENUM | KIND_FUNC_PROTO => 2,
            _ => 3,
        };
        for entry in tail {
            self.types.extend(&entry[..words]);
        }
        self.count += 1;
        self.count
    }

    fn int(&mut self, name: &str, bytes: u32) -> u32 {
        let id = self.ty(name, KIND_INT, false, bytes, &[]);
        self.types.push(bytes * 8);
        id
    }

    fn finish(self) -> Vec<u8> {
        let type_bytes = u32::try_from(self.types.len() * 4).unwrap();
        let string_bytes = u32::try_from(self.strings.len()).unwrap();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, type_bytes, type_bytes, string_bytes] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(self.types.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(self.strings);
        bytes
    }
}

/// A small kernel: an skb with an anonymous union and bitfields, a namespace, a reason, two tracepoints.
fn kernel() -> Vec<u8> {
    let mut w = Writer::new();
    let u8_ = w.int("unsigned char", 1);
    let u32_ = w.int("unsigned int", 4);
    let offset_t = w.ty("sk_buff_data_t", KIND_TYPEDEF, false, u32_, &[]);
    let constant = w.ty("", KIND_CONST, false, offset_t, &[]);
    let inum = w.string("inum");
    let ns = w.ty("ns_common", KIND_STRUCT, false, 8, &[[inum, u32_, 32]]);
    let name = w.string("ns");
    let net = w.ty("net", KIND_STRUCT, false, 16, &[[name, ns, 64]]);
    let net_ptr = w.ty("", KIND_PTR, false, net, &[]);
    let net_name = w.string("net");
    let possible = w.ty("", KIND_STRUCT, false, 8, &[[net_name, net_ptr, 0]]);
    let dev = w.string("dev");
    let rb = w.string("rbnode");
    let union = w.ty(
        "",
        KIND_UNION,
        false,
        8,
        &[[dev, net_ptr, 0], [rb, u32_, 0]],
    );
    let (tail, pkt_type, nd_net) = (w.string("tail"), w.string("pkt_type"), w.string("nd_net"));
    let skb = w.ty(
        "sk_buff",
        KIND_STRUCT,
        true,
        40,
        &[
            [0, union, 128],
            [tail, constant, 192],
            [pkt_type, u8_, 3 << 24 | 0xe5],
            [nd_net, possible, 256],
        ],
    );
    let skb_ptr = w.ty("", KIND_PTR, false, skb, &[]);
    let (consumed, none) = (w.string("SKB_CONSUMED"), w.string("SKB_NOT_DROPPED_YET"));
    let reason = w.ty(
        "skb_drop_reason",
        KIND_ENUM,
        false,
        4,
        &[[none, 0, 0], [consumed, 1, 0]],
    );
    let (negative, big) = (w.string("NEGATIVE"), w.string("BIG"));
    w.ty("signed", KIND_ENUM, true, 4, &[[negative, u32::MAX, 0]]);
    w.ty("wide", KIND_ENUM64, false, 8, &[[big, 1, 2]]);
    for (name, arguments) in [
        ("kfree_skb", [skb_ptr, skb_ptr, reason]),
        ("other", [0, 0, 0]),
    ] {
        let arguments: Vec<[u32; 3]> = [skb_ptr]
            .into_iter()
            .chain(arguments.into_iter().filter(|id| *id != 0))
            .map(|id| [0, id, 0])
            .collect();
        let proto = w.ty("", KIND_FUNC_PROTO, false, 0, &arguments);
        let pointer = w.ty("", KIND_PTR, false, proto, &[]);
        w.ty(
            &format!("btf_trace_{name}"),
            KIND_TYPEDEF,
            false,
            pointer,
            &[],
        );
    }
    w.finish()
}

#[test]
fn fields_are_found_through_anonymous_members_typedefs_and_paths() {
    let btf = Btf::parse(kernel()).unwrap();
    assert_eq!(btf.offset("sk_buff", "dev", 8), Some(16));
    assert_eq!(btf.offset("sk_buff", "tail", 4), Some(24));
    assert_eq!(btf.offset("sk_buff", "nd_net.net", 8), Some(32));
    assert_eq!(btf.offset("net", "ns.inum", 4), Some(12));
    assert_eq!(btf.offset("sk_buff", "tail", 8), None, "another size");
    assert_eq!(btf.offset("sk_buff", "absent", 4), None);
    assert_eq!(btf.offset("absent", "tail", 4), None);
}

#[test]
fn a_bitfield_has_a_bit_offset_and_no_byte_offset() {
    let btf = Btf::parse(kernel()).unwrap();
    let field = btf.field("sk_buff", "pkt_type").unwrap();
    assert_eq!((field.offset_bits, field.size_bits), (229, 3));
    assert_eq!(btf.offset("sk_buff", "pkt_type", 1), None);
}

#[test]
fn enumerators_keep_their_sign_and_width() {
    let btf = Btf::parse(kernel()).unwrap();
    assert_eq!(btf.enumerator("skb_drop_reason", "SKB_CONSUMED"), Some(1));
    assert_eq!(btf.enumerator("signed", "NEGATIVE"), Some(-1));
    assert_eq!(btf.enumerator("wide", "BIG"), Some(1 | 2 << 32));
    assert_eq!(btf.enumerator("sk_buff", "tail"), None);
}

#[test]
fn a_tracepoint_tells_its_arguments() {
    let btf = Btf::parse(kernel()).unwrap();
    assert_eq!(btf.tracepoint_args("kfree_skb"), Some(3));
    assert_eq!(btf.tracepoint_args("other"), Some(0));
    assert_eq!(btf.tracepoint_args("absent"), None);
    assert!(btf.tracepoint_arg_is_enum("kfree_skb", 2, "skb_drop_reason"));
    assert!(!btf.tracepoint_arg_is_enum("kfree_skb", 1, "skb_drop_reason"));
    assert!(!btf.tracepoint_arg_is_enum("kfree_skb", 3, "skb_drop_reason"));
}

#[test]
fn an_excerpt_keeps_the_ids_for_us_and_for_aya() {
    let btf = Btf::parse(kernel()).unwrap();
    let bytes = btf.excerpt(&["other", "kfree_skb", "absent"]);
    let aya = aya::Btf::parse(&bytes, aya::Endianness::default()).unwrap();
    let excerpt = Btf::parse(bytes).unwrap();
    for name in ["kfree_skb", "other"] {
        let id = btf.tracepoint(name).unwrap();
        assert_eq!(excerpt.tracepoint(name), Some(id));
        let aya_id =
            aya.id_by_type_name_kind(&format!("btf_trace_{name}"), aya_obj::btf::BtfKind::Typedef);
        assert_eq!(aya_id.unwrap(), id);
    }
    assert_eq!(excerpt.tracepoint("absent"), None);
}

#[test]
fn a_module_continues_the_kernel() {
    let base = Btf::parse(kernel()).unwrap();
    let mut module = Writer::new();
    // A module's first string offset is where the kernel's strings end, and every offset counts from there.
    module.strings.clear();
    let shift = u32::try_from(base.strings.1 - base.strings.0).unwrap();
    let (tag, name) = (
        module.string("ovs_drop_reason"),
        module.string("OVS_DROP_METER"),
    );
    module.types.extend([
        tag + shift,
        u32::from(KIND_ENUM) << 24 | 1,
        4,
        name + shift,
        0x20005,
    ]);
    let module = Btf::parse_split(module.finish(), &base).unwrap();
    assert_eq!(
        module.enumerator("ovs_drop_reason", "OVS_DROP_METER"),
        Some(0x20005)
    );
}

#[test]
fn a_structure_inside_itself_ends_the_search() {
    let mut w = Writer::new();
    // Type 1 has two anonymous members of type 1.
    w.ty("loop", KIND_STRUCT, false, 8, &[[0, 1, 0], [0, 1, 0]]);
    let btf = Btf::parse(w.finish()).unwrap();
    assert_eq!(btf.field("loop", "absent"), None);
}

#[test]
fn a_typedef_of_itself_has_no_size() {
    let mut w = Writer::new();
    w.ty("t", KIND_TYPEDEF, false, 1, &[]);
    let member = w.string("member");
    w.ty("s", KIND_STRUCT, false, 8, &[[member, 1, 0]]);
    let btf = Btf::parse(w.finish()).unwrap();
    assert_eq!(btf.field("s", "member"), None);
}

#[test]
fn what_is_no_btf_is_refused() {
    assert!(Btf::parse(Vec::new()).is_err());
    assert!(Btf::parse(vec![0; 64]).is_err());
    let mut swapped = kernel();
    swapped.swap(0, 1);
    assert!(Btf::parse(swapped).is_err());
}

#[test]
fn the_running_kernel_is_understood() {
    if !Path::new(SYSFS).join("vmlinux").exists() {
        // This machine's kernel has no BTF; on it, tracer says so and stops.
        return;
    }
    let btf = Btf::of_kernel().unwrap();
    assert!(btf.offset("sk_buff", "len", 4).is_some());
    assert!(btf.offset("sk_buff", "network_header", 2).is_some());
    assert!(btf.offset("net", "ns.inum", 4).is_some());
    assert!(btf.tracepoint_args("kfree_skb") >= Some(2));
}

/// Asks everything that tracer asks.
fn ask(btf: &Btf) {
    for tag in ["sk_buff", "net", "ns_common", "loop"] {
        for path in ["dev", "tail", "pkt_type", "nd_net.net", "ns.inum", "absent"] {
            let _ = btf.field(tag, path);
            let _ = btf.offset(tag, path, 4);
        }
    }
    for tag in ["skb_drop_reason", "signed", "wide", "net"] {
        let _ = btf.enumerators(tag);
    }
    for name in ["kfree_skb", "other"] {
        let _ = btf.tracepoint_args(name);
        let _ = btf.tracepoint_arg_is_enum(name, 2, "skb_drop_reason");
    }
    let _ = btf.excerpt(&["kfree_skb", "other"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = kernel();
        for (index, value) in changes {
            let len = bytes.len();
            bytes[index.index(len)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(btf) = Btf::parse(bytes.clone()) {
            ask(&btf);
        }
        let base = Btf::parse(kernel()).unwrap();
        if let Ok(btf) = Btf::parse_split(bytes, &base) {
            ask(&btf);
        }
    }
}
