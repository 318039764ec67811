//! The accelerator of this machine, of the vendor that `--device` names; where there is none, the emulated driver of the tests, by the same loader.

use std::{
    env,
    error::Error,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sha2::{Digest, Sha256};
use wharf::{
    MemoryType,
    transport::{Accelerator, cuda::CudaCopy, gaudi::GaudiCopy, rocm::RocmCopy},
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Whose device. The first is meant where none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    Cuda,
    Gaudi,
    Rocm,
}

/// The vendor that `--device NAME` at the begin of the command line names, and what comes after.
pub(crate) fn vendor(arguments: &[String]) -> Outcome<(Vendor, &[String])> {
    match arguments {
        [flag, name, rest @ ..] if flag == "--device" => match name.as_str() {
            "cuda" => Ok((Vendor::Cuda, rest)),
            "gaudi" => Ok((Vendor::Gaudi, rest)),
            "rocm" => Ok((Vendor::Rocm, rest)),
            _ => Err(format!("--device {name}: there are cuda, gaudi and rocm").into()),
        },
        rest => Ok((Vendor::Cuda, rest)),
    }
}

impl Vendor {
    /// In `--device` and in the names of transports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Gaudi => "gaudi",
            Self::Rocm => "rocm",
        }
    }

    /// Names the driver's library; read when the driver is loaded.
    fn variable(self) -> &'static str {
        match self {
            Self::Cuda => "WHARF_LIBCUDA",
            Self::Gaudi => "WHARF_LIBHLTHUNK",
            Self::Rocm => "WHARF_LIBHSA",
        }
    }

    fn emulated(self) -> &'static str {
        match self {
            Self::Cuda => "libwharf_emulated_cuda.so",
            Self::Gaudi => "libwharf_emulated_hlthunk.so",
            Self::Rocm => "libwharf_emulated_hsa.so",
        }
    }

    fn memory(self, device: u16) -> MemoryType {
        match self {
            Self::Cuda => MemoryType::Cuda(device),
            Self::Gaudi => MemoryType::Gaudi(device),
            Self::Rocm => MemoryType::Rocm(device),
        }
    }

    /// The accelerator, and the names of its devices.
    fn open(self) -> (Box<dyn Accelerator>, wharf::Result<Vec<String>>) {
        match self {
            Self::Cuda => {
                let accelerator = CudaCopy::new();
                let devices = accelerator.device_names();
                (Box::new(accelerator), devices)
            }
            Self::Gaudi => {
                let accelerator = GaudiCopy::new();
                // The library's file tells: what cards say of themselves is a number.
                let library = env::var(self.variable()).unwrap_or_default();
                let emulated = match library.ends_with(self.emulated()) {
                    true => "emulated ",
                    false => "",
                };
                let devices = accelerator.cards().map(|cards| {
                    let cards = cards.iter();
                    let names = cards.map(|card| {
                        let (kind, place) = (card.generation(), card.pci());
                        format!("{emulated}{kind} at {place}, module {}", card.module_id())
                    });
                    names.collect()
                });
                (Box::new(accelerator), devices)
            }
            Self::Rocm => {
                let accelerator = RocmCopy::new();
                let devices = accelerator.device_names();
                (Box::new(accelerator), devices)
            }
        }
    }
}

/// What was found.
pub(crate) struct Found {
    /// For those who drive it by hand. A context has its own.
    #[allow(dead_code, reason = "not every example does")]
    pub(crate) accelerator: Box<dyn Accelerator>,
    vendor: Vendor,
    /// The names of its devices.
    pub(crate) devices: Vec<String>,
}

/// Looks for an accelerator. Where there is none this program starts anew, as the same process, with the emulated driver: to be called before
/// anything else is done. What the driver's variable names is taken or refused, not replaced.
pub(crate) fn find(vendor: Vendor) -> Outcome<Found> {
    let (accelerator, devices) = vendor.open();
    match devices {
        Ok(devices) if !devices.is_empty() => Ok(Found {
            accelerator,
            vendor,
            devices,
        }),
        Err(error) if env::var_os(vendor.variable()).is_some() => Err(error.into()),
        Err(error) => Err(emulate(vendor, &error.to_string())),
        Ok(_) => Err(emulate(vendor, "the driver has no device")),
    }
}

impl Found {
    /// Memory of the first device.
    pub(crate) fn first(&self) -> MemoryType {
        self.vendor.memory(0)
    }

    /// Memory of another device, or of the first where it is the only one.
    pub(crate) fn second(&self) -> MemoryType {
        self.vendor.memory(u16::from(self.devices.len() > 1))
    }

    /// Whether there is no device behind it.
    pub(crate) fn is_emulated(&self) -> bool {
        self.devices[0].to_lowercase().contains("emulated")
    }

    /// Says what it is.
    pub(crate) fn introduce(&self) {
        for (number, name) in self.devices.iter().enumerate() {
            let device = self.vendor.memory(number as u16);
            say(format_args!("device {device}: {name}"));
        }
        if self.is_emulated() {
            say(format_args!(
                "*** EMULATED: no accelerator is in use. The bytes take every path that they take on one; rates say nothing of a device's. ***"
            ));
        }
    }

    /// A rate, with its worth.
    pub(crate) fn rate(&self, length: usize, took: Duration) -> String {
        let rate = length as f64 / took.as_secs_f64().max(1e-9) / 1e9;
        match self.is_emulated() {
            true => format!("{rate:.3} GB/s (emulated: says nothing of a device's speed)"),
            false => format!("{rate:.3} GB/s"),
        }
    }
}

/// Starts this program anew with the emulated driver. Returns only when that fails.
fn emulate(vendor: Vendor, why: &str) -> Box<dyn Error + Send + Sync> {
    let library = match beside(vendor.emulated()) {
        Ok(library) => library,
        Err(error) => return format!("no accelerator ({why}), and {error}").into(),
    };
    say(format_args!("no accelerator here: {why}"));
    say(format_args!(
        "starting again with {}={}",
        vendor.variable(),
        library.display()
    ));
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error.into(),
    };
    let mut again = Command::new(program);
    again
        .arg0(name)
        .args(arguments)
        .env(vendor.variable(), &library);
    if vendor == Vendor::Gaudi {
        // For who allocates by Synapse: of the same emulated cards. Unless it is loaded nobody looks at it.
        if let Ok(synapse) = beside("libwharf_emulated_synapse.so") {
            again.env("WHARF_LIBSYNAPSE", synapse);
        }
    }
    let error = again.exec();
    format!("starting again: {error}").into()
}

/// An emulated library: Cargo builds it with the examples of a checkout, and puts it in the `deps` folder of their profile.
pub(crate) fn beside(name: &str) -> Outcome<PathBuf> {
    let program = env::current_exe()?;
    // Examples stand beside that folder, tests in it.
    let folders = program.ancestors().skip(1).take(2);
    let mut places = folders.flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
    let found = places.find(|place| place.exists());
    found.ok_or_else(|| format!("{name} was not built beside {}", program.display()).into())
}

/// Reads a file, which may not be empty: there is no device memory of 0 bytes.
pub(crate) fn read(file: &Path) -> Outcome<Vec<u8>> {
    let content = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    match content.is_empty() {
        true => Err(format!("{} is empty", file.display()).into()),
        false => Ok(content),
    }
}

pub(crate) fn digest(content: &[u8]) -> [u8; 32] {
    Sha256::digest(content).into()
}

/// Compares digests, and prints what both are.
pub(crate) fn compare(what: &str, sent: &[u8], got: &[u8]) -> Outcome<()> {
    let hex = |digest: &[u8]| -> String {
        let digits = digest.iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    };
    if sent != got {
        let (sent, got) = (hex(sent), hex(got));
        return Err(format!("{what}: SHA-256 {got}, and not {sent}").into());
    }
    say(format_args!("{what}: SHA-256 {} ok", hex(got)));
    Ok(())
}

/// Prints a line.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    // Nobody who listens is no reason to stop.
    let _ = writeln!(io::stdout(), "{line}");
}
