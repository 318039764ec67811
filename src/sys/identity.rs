//! Where this process lives.

use std::{fs, os::unix::fs::MetadataExt, sync::OnceLock};

use crate::types::Identity;

/// This process's identity, read once. What cannot be read (no `/proc`) is zero.
pub(crate) fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| Identity {
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| parse_uuid(&text))
            .unwrap_or_default(),
        net_namespace: namespace("net"),
        pid_namespace: namespace("pid"),
        user_namespace: namespace("user"),
        user: nix::unistd::geteuid().as_raw(),
        pid: std::process::id(),
    })
}

fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino())
}

/// 32 hexadecimal digits, dashes anywhere.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_on_its_own_host() {
        let me = identity();
        assert_eq!(me.pid, std::process::id());
        assert!(me.same_host(me) || me.boot == [0; 16]);
    }

    #[test]
    fn only_uuids_parse() {
        let good = "00010203-0405-0607-0809-0a0b0c0d0e0f\n";
        assert_eq!(
            parse_uuid(good),
            Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        );
        for bad in ["", "00", "+0010203-0405-0607-0809-0a0b0c0d0e0f", "é"] {
            assert_eq!(parse_uuid(bad), None);
        }
    }
}
