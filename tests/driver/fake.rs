//! Libraries made on the spot: a few exported functions that answer what a test wants, compiled by the compiler that is building the tests.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::table;

/// A folder of libraries that is removed with it. What was loaded stays loaded.
pub(crate) struct Fakes(tempfile::TempDir);

impl Fakes {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// Compiles a library.
    pub(crate) fn compile(&self, name: &str, source: &str) -> PathBuf {
        let file = self.0.path().join(format!("{name}.rs"));
        let library = self.0.path().join(format!("lib{name}.so"));
        fs::write(&file, source).expect("writable");
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        let output = Command::new(rustc)
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "cdylib",
                "--crate-name",
                name,
            ])
            .args(["--cap-lints", "allow", "-C", "panic=abort", "-o"])
            .args([&library, &file])
            .output()
            .expect("the compiler");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}");
        library
    }

    /// A CUDA driver of a version, in which every required function answers success, and `more` is added. Functions named in `own` are
    /// left out: `more` has them, or nobody.
    #[allow(dead_code, reason = "tests of other libraries use the compiler alone")]
    pub(crate) fn driver(&self, name: &str, version: u32, own: &[&str], more: &str) -> PathBuf {
        let mut source = String::new();
        let mut export = |name: &str, body: &str| {
            if !own.contains(&name) {
                writeln!(source, "#[unsafe(no_mangle)] {body}").expect("a string takes it");
            }
        };
        // Asked for before there is a table.
        export(
            "cuDriverGetVersion",
            &format!(
                "pub unsafe extern \"C\" fn cuDriverGetVersion(v: *mut i32) -> u32 {{ unsafe {{ *v = {version} }}; 0 }}"
            ),
        );
        for table::Function { name, .. } in table::functions("cuda")
            .into_iter()
            .filter(|function| function.required)
        {
            export(
                &name,
                &format!("pub extern \"C\" fn {name}() -> u32 {{ 0 }}"),
            );
        }
        source.push_str(more);
        self.compile(name, &source)
    }
}
