//! Two network namespaces and the cable between them.

use std::{
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use nix::unistd::geteuid;

/// Where one listens, and from where one connects.
pub(crate) const ADDRESSES: [&str; 2] = ["10.83.0.1", "10.83.0.2"];

/// Removed when it is dropped, with all that was made until then.
pub(crate) struct Cable {
    spaces: [String; 2],
}

impl Cable {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        assert!(geteuid().is_root(), "only root can make network namespaces");
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cable = Self {
            spaces: ["a", "b"].map(|end| format!("wharf-{pid}-{count}{end}")),
        };
        let [a, b] = &cable.spaces;
        let mut lines = vec![
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
        ];
        for (space, address) in cable.spaces.iter().zip(ADDRESSES) {
            lines.push(format!("-n {space} addr add {address}/24 dev cable"));
            lines.push(format!("-n {space} link set lo up"));
            lines.push(format!("-n {space} link set cable up"));
        }
        for line in lines {
            ip(&line).unwrap_or_else(|error| panic!("ip {line}: {error}"));
        }
        cable
    }

    /// What starts a process at one end.
    pub(crate) fn command(&self, listens: bool) -> [&str; 4] {
        ["ip", "netns", "exec", self.space(listens)]
    }

    /// Sets one end `up` or `down`.
    pub(crate) fn set(&self, listens: bool, state: &str) {
        ip(&format!(
            "-n {} link set cable {state}",
            self.space(listens)
        ))
        .expect("the cable");
    }

    fn space(&self, listens: bool) -> &str {
        &self.spaces[usize::from(!listens)]
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for space in &self.spaces {
            // The cable goes with them. An error: it was not made yet.
            let _ = ip(&format!("netns del {space}"));
        }
    }
}

/// Runs `ip` with these words. The error is what it printed.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
