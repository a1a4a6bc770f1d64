//! The names of the kernel's functions, from `/proc/kallsyms`.
//!
//! Addresses stay here: what leaves is `function+offset`.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    ops::Range,
};

use crate::event::Symbol;

const KALLSYMS: &str = "/proc/kallsyms";

/// A longer line is no symbol: the kernel's names are at most 511 bytes (`KSYM_NAME_LEN`).
const LINE_MAX: usize = 1024;

/// Beyond this a function does not reach; an address farther from its symbol belongs to something unnamed.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// The functions of the kernel and its modules, sorted by address.
#[derive(Debug, Default)]
pub struct Symbols {
    /// The address, and where the name begins in `names`.
    functions: Vec<(u64, u32)>,
    /// Every name followed by a NUL.
    names: String,
}

impl Symbols {
    /// Reads the running kernel's symbols. The table is empty where the kernel hides addresses
    /// (`kernel.kptr_restrict`, or no `CAP_SYSLOG`).
    pub fn of_kernel() -> io::Result<Self> {
        Self::read(File::open(KALLSYMS)?)
    }

    /// Reads symbols in the form of `/proc/kallsyms`.
    pub(crate) fn read(source: impl Read) -> io::Result<Self> {
        let mut symbols = Self::default();
        let mut source = BufReader::with_capacity(1 << 16, source);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = source
                .by_ref()
                .take(LINE_MAX as u64)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            symbols.add(&line);
        }
        // Stable, so that of several names of one address the kernel's first one is found.
        symbols.functions.sort_by_key(|(address, _)| *address);
        symbols.functions.dedup_by_key(|(address, _)| *address);
        symbols.functions.shrink_to_fit();
        symbols.names.shrink_to_fit();
        Ok(symbols)
    }

    /// Adds a line such as `ffffffff8207f980 T tcp_rcv_state_process [module]`, if it is a function.
    fn add(&mut self, line: &[u8]) {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let parsed = std::str::from_utf8(address)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let (Some(address), Ok(name)) = (parsed, std::str::from_utf8(name)) else {
            return;
        };
        if address == 0 || !matches!(kind, b"t" | b"T" | b"w" | b"W") {
            return;
        }
        let Ok(at) = u32::try_from(self.names.len()) else {
            return;
        };
        self.functions.push((address, at));
        self.names.push_str(name);
        self.names.push('\0');
    }

    /// Whether the kernel hid its addresses.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The addresses of a function, up to the next one.
    pub fn range(&self, name: &str) -> Option<Range<u64>> {
        let mut found = self
            .functions
            .iter()
            .enumerate()
            .filter(|(_, (_, at))| self.name(*at) == name);
        let (index, (start, _)) = found.next()?;
        // Two functions of one name: either could be meant.
        if found.next().is_some() {
            return None;
        }
        let (end, _) = self.functions.get(index + 1)?;
        (end - start <= FUNCTION_BYTES_MAX).then_some(*start..*end)
    }

    /// The function that a return address leads back into. The call is the instruction before it, and may be the
    /// last of its function.
    pub fn caller(&self, return_address: u64) -> Symbol {
        let found = || {
            let call = return_address.checked_sub(1)?;
            let after = self.functions.partition_point(|(start, _)| *start <= call);
            let (start, at) = self.functions.get(after.checked_sub(1)?)?;
            let offset = return_address - start;
            (offset <= FUNCTION_BYTES_MAX).then(|| Symbol {
                function: self.name(*at).to_owned(),
                offset: u32::try_from(offset).unwrap_or(u32::MAX),
            })
        };
        found().unwrap_or(Symbol {
            function: String::new(),
            offset: 0,
        })
    }

    fn name(&self, at: u32) -> &str {
        let rest = self.names.get(at as usize..).unwrap_or_default();
        rest.split('\0').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff82000000 T tcp_v4_rcv
ffffffff82000100 T tcp_rcv_state_process
ffffffff82000100 T alias_of_it
ffffffff82000180 d not_a_function
ffffffff82000200 t next
ffffffffc0000000 t veth_xmit\t[veth]
";

    fn symbols() -> Symbols {
        Symbols::read(KALLSYMS.as_bytes()).expect("reading from memory")
    }

    #[test]
    fn a_return_address_belongs_to_the_function_that_called() {
        let at = |address| symbols().caller(address).to_string();
        assert_eq!(at(0xffff_ffff_8200_0111), "tcp_rcv_state_process+0x11");
        assert_eq!(at(0xffff_ffff_8200_0100), "tcp_v4_rcv+0x100");
        assert_eq!(at(0xffff_ffff_c000_0010), "veth_xmit+0x10");
        assert_eq!(at(0xffff_ffff_d000_0010), "?");
        assert_eq!(at(0xffff_ffff_8200_0000), "?");
        assert_eq!(at(0), "?");
    }

    #[test]
    fn a_function_ends_where_the_next_begins() {
        let range = symbols().range("tcp_rcv_state_process");
        assert_eq!(range, Some(0xffff_ffff_8200_0100..0xffff_ffff_8200_0200));
        assert_eq!(symbols().range("absent"), None);
    }

    #[test]
    fn hidden_addresses_leave_no_symbols() {
        let hidden = "0000000000000000 T tcp_v4_rcv\n0000000000000000 T next\n";
        let symbols = Symbols::read(hidden.as_bytes()).expect("reading from memory");
        assert!(symbols.is_empty());
        assert_eq!(symbols.caller(0).to_string(), "?");
    }
}
