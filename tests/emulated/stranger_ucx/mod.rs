//! UCX as its authors built it, on the emulated driver: the package `libucx-cu12` of PyPI, with its CUDA modules.
//!
//! ```sh
//! python3 -m pip install --no-deps --target FOLDER libucx-cu12==1.22.0
//! UCX_WHEEL=FOLDER cargo test --test emulated stranger_ucx -- --ignored --nocapture
//! ```
//!
//! `.ci/run` installs the package and sets `UCX_WHEEL`.
//!
//! * `perftest`: its programs, unchanged: what they find, and `ucx_perftest` between two processes. `programs` runs them.
//! * `data`: its library in two processes of this program, every byte checked.
//! * `costs`: what its operations cost, driver calls and processor time, beside wharf's (`wharf_side`).
//!
//! One file beside UCX's own is replaced: the vendor's `libcudart`, which asks a driver for tables that are nowhere documented.

mod costs;
mod data;
mod perftest;
mod programs;
mod ucp;
mod wharf_side;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::support::emulated;

const WHEEL: &str = "UCX_WHEEL";

/// UCX beside the emulated libraries: a folder of links.
pub(crate) struct Ucx {
    folder: tempfile::TempDir,
}

impl Ucx {
    pub(crate) fn find() -> Self {
        let wheel = std::env::var_os(WHEEL)
            .unwrap_or_else(|| panic!("{WHEEL} names no folder with the package libucx-cu12"));
        let wheel = PathBuf::from(wheel);
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let to = folder.path();
        // The modules look for the vendor's runtime in a folder beside, so each folder is a real one, and each file a link.
        for part in [
            "libucx/bin",
            "libucx/lib",
            "libucx/lib/ucx",
            "libucx_cu12.libs",
        ] {
            link_files(&wheel.join(part), &to.join(part));
        }
        let runtime = fs::read_dir(to.join("libucx_cu12.libs"))
            .expect("made above")
            .map(|entry| entry.expect("readable").path())
            .find(|path| path.to_string_lossy().contains("libcudart"))
            .expect("the package brings a libcudart");
        fs::remove_file(&runtime).expect("a link of ours");
        symlink(emulated::cudart(), runtime).expect("a link");
        symlink(emulated::cuda(), to.join("libcuda.so.1")).expect("a link");
        symlink(emulated::nvml(), to.join("libnvidia-ml.so.1")).expect("a link");
        Self { folder }
    }

    /// Where the loader finds UCX and the emulated driver.
    pub(crate) fn library_path(&self) -> String {
        let folder = self.folder.path().display();
        format!("{folder}:{folder}/libucx/lib")
    }

    /// One of its programs, in a clean environment.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.path().join("libucx/bin").join(program));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("UCX_") || name.starts_with("EMULATED_CUDA_") {
                command.env_remove(&*name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", self.library_path())
            .stdin(Stdio::null());
        command
    }

    /// A new file for what a program leaves.
    fn file(&self, name: &str) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        self.folder.path().join(format!("{name}.{number}"))
    }
}

fn link_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    let entries =
        fs::read_dir(from).unwrap_or_else(|error| panic!("{WHEEL}: {}: {error}", from.display()));
    for entry in entries {
        let entry = entry.expect("readable");
        if entry.path().is_file() {
            symlink(entry.path(), to.join(entry.file_name())).expect("a link");
        }
    }
}
