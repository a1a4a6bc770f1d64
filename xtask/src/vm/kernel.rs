//! The kernels that guests run: Debian's for clouds, unpacked into the cache with the modules that a network needs.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command,
    setup::{self, apt::PrivateApt},
};

/// The directories below a kernel's modules that a network is made of. The rest is drivers of hardware and file systems,
/// which a guest that lives in its memory does not have.
const MODULES_OF_NETWORKS: &[&str] = &["arch", "crypto", "drivers/net", "lib", "net"];

/// Drivers of network hardware, the largest part of what is below `drivers/net`.
const MODULES_OF_HARDWARE: &[&str] = &["drivers/net/ethernet", "drivers/net/wireless"];

/// One of the kernels that the lab is run on: the oldest that tracer supports, two that many people run, and the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kernel {
    /// Debian 11
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13
    #[value(name = "6.12")]
    V6_12,
    /// Debian 13, backports
    #[value(name = "7.3")]
    V7_3,
}

impl Kernel {
    /// All of them, the oldest first.
    pub const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7_3];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Self::V5_10 => "bullseye",
            Self::V6_1 => "bookworm",
            Self::V6_12 => "trixie",
            Self::V7_3 => "trixie-backports",
        }
    }
}

/// A kernel as a guest needs it, in the cache.
pub struct Unpacked {
    /// What `uname -r` says in it.
    pub release: String,
    /// The image that QEMU starts.
    pub image: PathBuf,
    /// `lib/modules/RELEASE` is below it, with what `modprobe` reads.
    pub root: PathBuf,
}

/// Provides a kernel. One that was fetched once is kept, so that what passed yesterday is what runs today; whoever wants
/// a newer one removes it from the cache.
pub fn fetch(kernel: Kernel) -> Result<Unpacked> {
    let cache = setup::cache_directory();
    let place = cache.join("kernels").join(kernel.name());
    if let Ok(unpacked) = Unpacked::at(&place) {
        return Ok(unpacked);
    }
    setup::step(
        &format!(
            "taking Linux {} from Debian's {}",
            kernel.name(),
            kernel.suite()
        ),
        "guests run it",
    );
    // Unpacked beside its place and moved, so that an interrupted run leaves nothing that looks whole.
    let partial = cache.join(format!("kernels/{}.partial", kernel.name()));
    for leftover in [&partial, &place] {
        remove(leftover)?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    unpack_packages(kernel, &cache, &partial)
        .and_then(|()| arrange(&partial))
        .and_then(|()| index(&partial))
        .with_context(|| format!("cannot provide Linux {} to guests", kernel.name()))?;
    fs::rename(&partial, &place)
        .with_context(|| format!("cannot move {} to its place", partial.display()))?;
    Unpacked::at(&place)
}

impl Unpacked {
    fn at(place: &Path) -> Result<Self> {
        let modules = place.join("lib/modules");
        let release = only_entry(&modules)?;
        let image = place.join("vmlinuz");
        if !image.is_file() {
            bail!("there is no {}", image.display());
        }
        Ok(Self {
            release,
            image,
            root: place.to_owned(),
        })
    }
}

/// Downloads the newest packages of this kernel in its suite and unpacks them into one directory.
fn unpack_packages(kernel: Kernel, cache: &Path, directory: &Path) -> Result<()> {
    let private = PrivateApt::for_suite(&cache.join("apt"), kernel.suite())?;
    private.update()?;
    let mut known = private.names("linux-image-")?;
    known.extend(private.names("linux-binary-")?);
    known.extend(private.names("linux-modules-")?);
    let packages = packages_of(kernel.name(), &known);
    if packages.is_empty() {
        bail!(
            "Debian's {} has no kernel {} for clouds",
            kernel.suite(),
            kernel.name()
        );
    }
    for package in packages {
        let versions = private.versions(&package)?;
        let version = versions
            .first()
            .with_context(|| format!("{} has no {package}", kernel.suite()))?;
        let archive = private.download(&package, version)?;
        command::run(Command::new("dpkg").arg("-x").arg(&archive).arg(directory))?;
        fs::remove_file(&archive)?;
    }
    Ok(())
}

/// The packages of the newest build of a kernel: one, or the image and the modules apart, as Debian has it of late.
fn packages_of(kernel: &str, known: &[String]) -> Vec<String> {
    let newest = |kind: &str| -> Option<&String> {
        known
            .iter()
            .filter(|name| {
                name.strip_prefix(kind)
                    .and_then(|rest| rest.strip_prefix(kernel))
                    .is_some_and(|rest| rest.starts_with('.') && rest.ends_with("-cloud-amd64"))
            })
            .max_by_key(|name| numbers_in(name))
    };
    if let (Some(image), Some(modules)) = (newest("linux-binary-"), newest("linux-modules-")) {
        return vec![image.clone(), modules.clone()];
    }
    newest("linux-image-").into_iter().cloned().collect()
}

/// What versions are compared by: their numbers, in order.
fn numbers_in(name: &str) -> Vec<u64> {
    name.split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Brings what packages unpack into the shape of [`Unpacked`], and drops what no guest needs.
fn arrange(directory: &Path) -> Result<()> {
    // Where `/lib` is a link to `/usr/lib`, newer packages ship the latter.
    let shipped = ["usr/lib/modules", "lib/modules"]
        .map(|place| directory.join(place))
        .into_iter()
        .find(|place| place.is_dir())
        .context("the packages hold no modules")?;
    let release = only_entry(&shipped)?;
    let modules = directory.join("lib/modules").join(&release);
    if shipped.join(&release) != modules {
        fs::create_dir_all(directory.join("lib/modules"))?;
        fs::rename(shipped.join(&release), &modules)?;
    }
    let image = [
        modules.join("vmlinuz"),
        directory.join(format!("boot/vmlinuz-{release}")),
    ]
    .into_iter()
    .find(|image| image.is_file())
    .context("the packages hold no kernel")?;
    fs::rename(image, directory.join("vmlinuz"))?;

    let kernel = modules.join("kernel");
    let whole = modules.join("kernel.whole");
    fs::rename(&kernel, &whole)?;
    for part in MODULES_OF_NETWORKS {
        // A kernel may have built in all that is in one of them.
        if whole.join(part).is_dir() {
            let place = kernel.join(part);
            fs::create_dir_all(place.parent().unwrap_or(&kernel))?;
            fs::rename(whole.join(part), place)?;
        }
    }
    for part in MODULES_OF_HARDWARE {
        remove(&kernel.join(part))?;
    }
    for rest in [whole, directory.join("usr"), directory.join("boot")] {
        remove(&rest)?;
    }
    Ok(())
}

/// Writes down which modules need which others, for `modprobe`.
fn index(directory: &Path) -> Result<()> {
    let release = only_entry(&directory.join("lib/modules"))?;
    let depmod = command::find("depmod").context("depmod (kmod) is not here")?;
    command::run(Command::new(depmod).arg("-b").arg(directory).arg(release))
}

/// The name of the one thing in a directory.
fn only_entry(directory: &Path) -> Result<String> {
    let mut names = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<String>>>()?;
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        _ => bail!("{} should hold one thing", directory.display()),
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(kernel: &str, known: &[&str]) -> Vec<String> {
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        packages_of(kernel, &known)
    }

    #[test]
    fn the_newest_build_of_the_kernel_is_taken() {
        let known = [
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-32-cloud-amd64",
            "linux-image-5.10.0-32-cloud-amd64-dbg",
            "linux-image-5.10.0-33-cloud-amd64-unsigned",
            "linux-image-5.10.0-34-amd64",
            "linux-image-5.1.0-99-cloud-amd64",
        ];
        assert_eq!(
            packages("5.10", &known),
            ["linux-image-5.10.0-32-cloud-amd64"]
        );
        assert!(packages("6.1", &known).is_empty());
    }

    #[test]
    fn an_image_apart_from_its_modules_is_two_packages() {
        let known = [
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3.10+deb13-cloud-amd64",
            "linux-binary-unsigned-7.3.10+deb13-cloud-amd64",
            "linux-modules-7.3.4+deb13-cloud-amd64",
            "linux-modules-7.3.10+deb13-cloud-amd64",
        ];
        assert_eq!(
            packages("7.3", &known),
            [
                "linux-binary-7.3.10+deb13-cloud-amd64",
                "linux-modules-7.3.10+deb13-cloud-amd64"
            ]
        );
    }

    #[test]
    fn modules_of_networks_are_kept_and_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let touch = |path: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        touch("boot/vmlinuz-1.2.3");
        touch("usr/share/doc/copyright");
        for module in [
            "net/a.ko",
            "drivers/net/b.ko",
            "drivers/net/ethernet/c.ko",
            "fs/d.ko",
        ] {
            touch(&format!("usr/lib/modules/1.2.3/kernel/{module}"));
        }
        arrange(directory.path()).unwrap();
        let unpacked = Unpacked::at(directory.path()).unwrap();
        assert_eq!(unpacked.release, "1.2.3");
        let kernel = unpacked.root.join("lib/modules/1.2.3/kernel");
        assert!(kernel.join("net/a.ko").is_file() && kernel.join("drivers/net/b.ko").is_file());
        assert!(!kernel.join("drivers/net/ethernet").exists() && !kernel.join("fs").exists());
        assert!(!directory.path().join("usr").exists());
    }
}
