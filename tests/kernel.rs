//! What the running kernel has. What a test expects only of kernels that have it is declared with it, by name or by the first
//! release that has it: the tracer itself never asks for a release.

use std::fs;
use std::io::{self, Write as _};
use std::sync::LazyLock;
use std::thread;

use nix::sys::utsname::uname;
use tracer::kernel::btf::Btf;

/// A release of Linux: 5.10 is `Release(5, 10)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

/// The release whose names for reasons the lab is written with: from here on a name that is missing is a mistake of ours.
const KNOWS_EVERY_REASON: Release = Release(6, 18);

static RUNNING: LazyLock<Release> = LazyLock::new(|| {
    let uname = uname().expect("uname always works");
    parse(&uname.release().to_string_lossy()).expect("a release begins with two numbers")
});

static BTF: LazyLock<Btf> =
    LazyLock::new(|| Btf::of_kernel().expect("a kernel that tracer supports has BTF"));

impl Release {
    /// Whether the running kernel is this release or a later one.
    pub fn is_reached(self) -> bool {
        *RUNNING >= self
    }

    /// The same for a whole case, which is skipped on an older kernel. That is said past the test runner, which keeps what a
    /// case that passes prints.
    pub fn is_reached_or_said(self, needed: &str) -> bool {
        let is_reached = self.is_reached();
        if !is_reached {
            let case = thread::current();
            let Self(major, minor) = self;
            let _ = writeln!(
                io::stderr(),
                "skipped: {}: {needed}, since Linux {major}.{minor}",
                case.name().unwrap_or("a case")
            );
        }
        is_reached
    }
}

/// Whether the running kernel can give this reason for a drop (`enum skb_drop_reason`, since 5.17; most came later).
pub fn has_drop_reason(name: &str) -> bool {
    KNOWS_EVERY_REASON.is_reached()
        || BTF
            .enumerator("skb_drop_reason", &format!("SKB_DROP_REASON_{name}"))
            .is_some()
}

/// Whether this kernel has a module, loaded, to be loaded or built in.
pub fn has_module(name: &str) -> io::Result<bool> {
    if fs::exists(format!("/sys/module/{name}"))? {
        return Ok(true);
    }
    let release = uname()?.release().to_string_lossy().into_owned();
    let mut lists = ["modules.dep", "modules.builtin"].into_iter().map(|list| {
        fs::read_to_string(format!("/lib/modules/{release}/{list}")).unwrap_or_default()
    });
    Ok(lists.any(|list| list.contains(&format!("/{name}.ko"))))
}

fn parse(release: &str) -> Option<Release> {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse);
    Some(Release(numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_as_numbers() {
        assert_eq!(parse("5.10.0-32-cloud-amd64"), Some(Release(5, 10)));
        assert_eq!(parse("7.3-rc1"), Some(Release(7, 3)));
        assert_eq!(parse("6"), None);
        assert!(Release(5, 10) > Release(5, 9) && Release(6, 1) > Release(5, 17));
        assert!(Release(5, 10).is_reached() && !Release(99, 0).is_reached());
    }
}
