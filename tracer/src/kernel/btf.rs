//! A reader of BTF, the kernel's own description of its types (`Documentation/bpf/btf.rst`): only what tracer
//! asks of it, that is where a field is, what an enumeration names, and what arguments a tracepoint has.
//!
//! The bytes come from the kernel, but a container may have mounted anything over the file: whatever is wrong in
//! them is an error or an absence, never a panic or an endless walk.

use std::{collections::HashMap, fs, io, path::Path};

use thiserror::Error;

/// Where the kernel shows the BTF of itself and of its modules.
pub const SYSFS: &str = "/sys/kernel/btf";

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// No kernel has as many types, and a walk over all of them stays short.
const TYPES_MAX: usize = 4 << 20;
/// Modifiers around one type; the kernel allows 32 levels of anything (`MAX_RESOLVE_DEPTH`).
const MODIFIERS_MAX: usize = 32;
/// Anonymous structures around one field.
const NESTING_MAX: usize = 16;
/// Members that the search for one field may look at.
const MEMBERS_MAX: usize = 100_000;

const KIND_INT: u8 = 1;
const KIND_PTR: u8 = 2;
const KIND_ARRAY: u8 = 3;
const KIND_STRUCT: u8 = 4;
const KIND_UNION: u8 = 5;
const KIND_ENUM: u8 = 6;
const KIND_FWD: u8 = 7;
const KIND_TYPEDEF: u8 = 8;
const KIND_VOLATILE: u8 = 9;
const KIND_CONST: u8 = 10;
const KIND_RESTRICT: u8 = 11;
const KIND_FUNC: u8 = 12;
const KIND_FUNC_PROTO: u8 = 13;
const KIND_VAR: u8 = 14;
const KIND_DATASEC: u8 = 15;
const KIND_FLOAT: u8 = 16;
const KIND_DECL_TAG: u8 = 17;
const KIND_TYPE_TAG: u8 = 18;
const KIND_ENUM64: u8 = 19;

/// The prefix of the typedefs that describe tracepoints.
const TRACEPOINT_PREFIX: &str = "btf_trace_";

/// Why BTF cannot be used.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The bytes are no BTF of this machine's byte order.
    #[error("not BTF of this machine")]
    Header,
    /// A type is cut short or of a kind that this reader does not know.
    #[error("the BTF type {id} is damaged or of an unknown kind")]
    Type {
        /// Its id.
        id: u32,
    },
}

/// Parsed BTF of the kernel, or of a module on top of it.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type begins in `bytes`; the first is `first_id`.
    types: Vec<u32>,
    first_id: u32,
    /// The strings in `bytes`.
    strings: (usize, usize),
    /// The string offset at which this module's own strings begin.
    first_string: u32,
    /// Structs, unions and enums by name, the first of each.
    tags: HashMap<Box<str>, u32>,
    /// Tracepoints by name without the prefix: the id of the typedef.
    tracepoints: HashMap<Box<str>, u32>,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// From the start of the outermost structure.
    pub offset_bits: u32,
    /// Its size, or that of the bitfield.
    pub size_bits: u32,
    type_id: u32,
}

/// A type as written.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u8,
    /// Whether members carry bitfield sizes, or enumerators are signed.
    kind_flag: bool,
    count: usize,
    size_or_target: u32,
    /// Where what follows the type begins in `bytes`.
    tail: usize,
}

impl Btf {
    /// Reads the running kernel's BTF.
    pub fn of_kernel() -> Result<Self, BtfError> {
        Self::parse(read(&Path::new(SYSFS).join("vmlinux"))?)
    }

    /// Reads the BTF of a loaded module, which continues that of the kernel.
    pub fn of_module(name: &str, kernel: &Self) -> Result<Self, BtfError> {
        Self::parse_split(read(&Path::new(SYSFS).join(name))?, kernel)
    }

    /// Parses BTF that stands on its own.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        Self::parse_from(bytes, 1, 0)
    }

    /// Parses BTF whose ids and strings continue those of `base`.
    ///
    /// References into the base are not followed: what a module says for itself is all that is asked of it.
    pub fn parse_split(bytes: Vec<u8>, base: &Self) -> Result<Self, BtfError> {
        let first_id = base.first_id + u32::try_from(base.types.len()).unwrap_or(u32::MAX / 2);
        let strings = u32::try_from(base.strings.1 - base.strings.0).unwrap_or(u32::MAX / 2);
        Self::parse_from(bytes, first_id, base.first_string.saturating_add(strings))
    }

    fn parse_from(bytes: Vec<u8>, first_id: u32, first_string: u32) -> Result<Self, BtfError> {
        let header = |at: usize| u32_at(&bytes, at).ok_or(BtfError::Header);
        if u16_at(&bytes, 0) != Some(MAGIC) || bytes.len() < HEADER_BYTES {
            return Err(BtfError::Header);
        }
        let start = header(4)? as usize;
        let section = |offset: u32, len: u32| {
            let begin = start.checked_add(offset as usize)?;
            let end = begin.checked_add(len as usize)?;
            (end <= bytes.len()).then_some((begin, end))
        };
        let (mut at, end) = section(header(8)?, header(12)?).ok_or(BtfError::Header)?;
        let strings = section(header(16)?, header(20)?).ok_or(BtfError::Header)?;

        let mut btf = Self {
            types: Vec::with_capacity((end - at) / 24),
            first_id,
            strings,
            first_string,
            tags: HashMap::new(),
            tracepoints: HashMap::new(),
            bytes,
        };
        while at < end {
            let id = first_id.saturating_add(u32::try_from(btf.types.len()).unwrap_or(u32::MAX));
            let damaged = BtfError::Type { id };
            let Some(ty) = btf.type_at(at) else {
                return Err(damaged);
            };
            let next = ty.tail + ty.tail_bytes().ok_or(BtfError::Type { id })?;
            if next > end || btf.types.len() >= TYPES_MAX {
                return Err(damaged);
            }
            btf.types
                .push(u32::try_from(at).map_err(|_| BtfError::Header)?);
            btf.index(id, ty);
            at = next;
        }
        Ok(btf)
    }

    fn index(&mut self, id: u32, ty: Type) {
        let tracepoint = ty.kind == KIND_TYPEDEF;
        if !tracepoint && !matches!(ty.kind, KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64) {
            return;
        }
        let Some(name) = self.string(ty.name).filter(|name| !name.is_empty()) else {
            return;
        };
        if tracepoint {
            if let Some(name) = name.strip_prefix(TRACEPOINT_PREFIX) {
                let name = name.into();
                self.tracepoints.entry(name).or_insert(id);
            }
        } else {
            let name = name.into();
            self.tags.entry(name).or_insert(id);
        }
    }

    /// The id of the typedef that describes a tracepoint, which is what a program attaches to.
    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.tracepoints.get(name).copied()
    }

    /// BTF of nothing but some tracepoints, each with its own id. A library that must parse BTF to learn one id
    /// parses this in a fraction of the time.
    pub fn excerpt(&self, tracepoints: &[&str]) -> Vec<u8> {
        let mut wanted: Vec<(u32, &str)> = tracepoints
            .iter()
            .filter_map(|name| Some((self.tracepoint(name)?, *name)))
            .collect();
        wanted.sort_unstable();
        let (mut types, mut strings, mut id) = (Vec::new(), vec![0], 1);
        for (wanted, name) in wanted {
            while id < wanted {
                // A forward declaration without a name: it takes up an id, and nothing else.
                types.extend([0, u32::from(KIND_FWD) << 24, 0]);
                id += 1;
            }
            let at = u32::try_from(strings.len()).unwrap_or_default();
            types.extend([at, u32::from(KIND_TYPEDEF) << 24, 0]);
            strings.extend(TRACEPOINT_PREFIX.bytes().chain(name.bytes()));
            strings.push(0);
            id += 1;
        }
        let len = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let type_bytes = len(types.len() * 4);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        // Version 1, no flags.
        bytes.extend([1, 0]);
        for word in [24, 0, type_bytes, type_bytes, len(strings.len())] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(strings);
        bytes
    }

    /// How many arguments the tracepoint hands to a program.
    pub fn tracepoint_args(&self, name: &str) -> Option<usize> {
        let (_, proto) = self.tracepoint_proto(name)?;
        // The first is the tracepoint's own data.
        proto.count.checked_sub(1)
    }

    /// Whether an argument of the tracepoint, counted from 0, is the enumeration `tag`.
    pub fn tracepoint_arg_is_enum(&self, name: &str, arg: usize, tag: &str) -> bool {
        let found = || {
            let (_, proto) = self.tracepoint_proto(name)?;
            let index = arg.checked_add(1).filter(|index| *index < proto.count)?;
            let (_, ty) = self.resolve(u32_at(&self.bytes, proto.tail + index * 8 + 4)?)?;
            Some(matches!(ty.kind, KIND_ENUM | KIND_ENUM64) && self.string(ty.name)? == tag)
        };
        found().unwrap_or(false)
    }

    fn tracepoint_proto(&self, name: &str) -> Option<(u32, Type)> {
        let (_, pointer) = self.resolve(self.tracepoint(name)?)?;
        let (id, proto) =
            self.resolve((pointer.kind == KIND_PTR).then_some(pointer.size_or_target)?)?;
        (proto.kind == KIND_FUNC_PROTO).then_some((id, proto))
    }

    /// Finds a field by its path, such as `ns.inum` in `net`; members of anonymous structures and unions count as
    /// members of what is around them.
    pub fn field(&self, tag: &str, path: &str) -> Option<Field> {
        let mut field = Field {
            offset_bits: 0,
            size_bits: 0,
            type_id: *self.tags.get(tag)?,
        };
        for name in path.split('.') {
            let mut budget = MEMBERS_MAX;
            let inner = self.member(field.type_id, name, NESTING_MAX, &mut budget)?;
            field = Field {
                offset_bits: field.offset_bits.checked_add(inner.offset_bits)?,
                ..inner
            };
        }
        Some(field)
    }

    /// The byte offset of a field that occupies whole bytes, `size` of them.
    pub fn offset(&self, tag: &str, path: &str, size: u32) -> Option<u32> {
        let field = self.field(tag, path)?;
        (field.offset_bits.is_multiple_of(8) && field.size_bits == size.checked_mul(8)?)
            .then_some(field.offset_bits / 8)
    }

    fn member(&self, id: u32, name: &str, depth: usize, budget: &mut usize) -> Option<Field> {
        let (_, ty) = self.resolve(id)?;
        if !matches!(ty.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for index in 0..ty.count {
            *budget = budget.checked_sub(1)?;
            let at = ty.tail + index * 12;
            let type_id = u32_at(&self.bytes, at + 4)?;
            let raw = u32_at(&self.bytes, at + 8)?;
            let (offset_bits, bitfield_bits) = if ty.kind_flag {
                (raw & 0x00ff_ffff, raw >> 24)
            } else {
                (raw, 0)
            };
            let member = self.string(u32_at(&self.bytes, at)?)?;
            if member == name {
                let size_bits = if bitfield_bits == 0 {
                    self.size(type_id, MODIFIERS_MAX)?.checked_mul(8)?
                } else {
                    bitfield_bits
                };
                return Some(Field {
                    offset_bits,
                    size_bits,
                    type_id,
                });
            }
            if member.is_empty()
                && depth > 0
                && let Some(inner) = self.member(type_id, name, depth - 1, budget)
            {
                return Some(Field {
                    offset_bits: offset_bits.checked_add(inner.offset_bits)?,
                    ..inner
                });
            }
        }
        None
    }

    /// The enumerators of an enumeration, in its own order.
    pub fn enumerators(&self, tag: &str) -> Option<Vec<(&str, i64)>> {
        let ty = self.ty(*self.tags.get(tag)?)?;
        let bytes = match ty.kind {
            KIND_ENUM => 8,
            KIND_ENUM64 => 12,
            _ => return None,
        };
        (0..ty.count)
            .map(|index| {
                let at = ty.tail + index * bytes;
                let low = u32_at(&self.bytes, at + 4)?;
                let value = if ty.kind == KIND_ENUM64 {
                    let high = u32_at(&self.bytes, at + 8)?;
                    (u64::from(high) << 32 | u64::from(low)).cast_signed()
                } else if ty.kind_flag {
                    i64::from(low.cast_signed())
                } else {
                    i64::from(low)
                };
                Some((self.string(u32_at(&self.bytes, at)?)?, value))
            })
            .collect()
    }

    /// The value of one enumerator.
    pub fn enumerator(&self, tag: &str, name: &str) -> Option<i64> {
        let all = self.enumerators(tag)?;
        all.iter()
            .find(|(candidate, _)| *candidate == name)
            .map(|(_, value)| *value)
    }

    fn size(&self, id: u32, depth: usize) -> Option<u32> {
        let (_, ty) = self.resolve(id)?;
        match ty.kind {
            KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 | KIND_FLOAT => {
                Some(ty.size_or_target)
            }
            KIND_PTR => Some(8),
            KIND_ARRAY if depth > 0 => self
                .size(u32_at(&self.bytes, ty.tail)?, depth - 1)?
                .checked_mul(u32_at(&self.bytes, ty.tail + 8)?),
            _ => None,
        }
    }

    /// The type behind typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<(u32, Type)> {
        for _ in 0..MODIFIERS_MAX {
            let ty = self.ty(id)?;
            match ty.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = ty.size_or_target;
                }
                _ => return Some((id, ty)),
            }
        }
        None
    }

    fn ty(&self, id: u32) -> Option<Type> {
        let index = id.checked_sub(self.first_id)? as usize;
        self.type_at(*self.types.get(index)? as usize)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = u32_at(&self.bytes, at + 4)?;
        Some(Type {
            name: u32_at(&self.bytes, at)?,
            kind: u8::try_from(info >> 24 & 0x1f).ok()?,
            kind_flag: info >> 31 != 0,
            count: info as usize & 0xffff,
            size_or_target: u32_at(&self.bytes, at + 8)?,
            tail: at + 12,
        })
    }

    /// The string at an offset; strings of the base are empty to a module.
    fn string(&self, offset: u32) -> Option<&str> {
        let Some(offset) = offset.checked_sub(self.first_string) else {
            return Some("");
        };
        let bytes = self.bytes.get(self.strings.0..self.strings.1)?;
        let rest = bytes.get(offset as usize..)?;
        let len = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..len]).ok()
    }
}

impl Type {
    /// How many bytes follow the type, or `None` for a kind that this reader does not know.
    fn tail_bytes(self) -> Option<usize> {
        Some(match self.kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
            KIND_PTR | KIND_FWD | KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT
            | KIND_FUNC | KIND_FLOAT | KIND_TYPE_TAG => 0,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * self.count,
            KIND_ENUM | KIND_FUNC_PROTO => 8 * self.count,
            _ => return None,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BtfError> {
    fs::read(path).map_err(|source| BtfError::Read {
        path: path.display().to_string(),
        source,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
#[path = "btf_tests.rs"]
mod tests;
