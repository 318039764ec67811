//! The virtual machine: whether this is one, its cable, and what its kernel counts.

use std::{fs, process::Command};

use parking_lot::{Mutex, MutexGuard};

/// The tests change the machine's network: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A test's turn, in the machine.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    assert!(
        std::env::var_os("RDMA_VM").is_some(),
        "no RDMA devices; run in tests/rdma-vm/rdma-vm"
    );
    TURN.lock()
}

/// For a test that is ignored elsewhere.
macro_rules! needs_machine {
    () => {
        let _turn = $crate::machine::turn();
    };
}
pub(crate) use needs_machine;

/// Runs a line of shell commands, and demands success.
fn shell(line: &str) {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let mut command = Command::new("/bin/sh");
    let status = command.args(["-ec", line]).env("PATH", path).status();
    assert!(status.expect("a shell").success(), "{line}");
}

/// One end of a cable is down as long as this lives.
pub(crate) struct Down(u8);

impl Down {
    /// Of the cable that is always there.
    pub(crate) fn new() -> Self {
        Self::of(1)
    }

    /// Of the second one.
    pub(crate) fn of_second() -> Self {
        Self::of(3)
    }

    fn of(end: u8) -> Self {
        shell(&format!("ip link set rdma{end} down"));
        Self(end)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        let (end, net) = (self.0, 77 + self.0 / 2);
        // The kernel forgot how to reach the other end over the cable.
        shell(&format!(
            "ip link set rdma{end} up
             ip route replace 10.{net}.0.1 dev rdma{end} src 10.{net}.0.2 table 10{end}
             ip neighbour replace 10.{net}.0.1 lladdr 02:00:00:00:00:0{end} dev rdma{end} nud permanent",
        ));
    }
}

/// A second cable, with a device at each end: `rxe2` on `rdma2`, `rxa3` on `rdma3`, whose name stands before that of `rxe1`. It goes when this is dropped.
pub(crate) struct SecondCable;

impl SecondCable {
    pub(crate) fn new() -> Self {
        shell(
            "ip link add rdma2 address 02:00:00:00:00:03 type veth peer name rdma3 address 02:00:00:00:00:04
             for end in rdma2 rdma3; do ip link set $end up; done
             lay() {
                 ip address add 10.78.0.$2/24 dev $1
                 ip route add 10.78.0.$3 dev $1 src 10.78.0.$2 table $4
                 ip neighbour replace 10.78.0.$3 lladdr $5 dev $1 nud permanent
                 ip rule add pref 10 iif lo from 10.78.0.$2 to 10.78.0.$2 lookup local
                 ip rule add pref 20 iif lo to 10.78.0.$3 lookup $4
                 rdma link add $6 type rxe netdev $1
             }
             lay rdma2 1 2 102 02:00:00:00:00:04 rxe2
             lay rdma3 2 1 103 02:00:00:00:00:03 rxa3",
        );
        Self
    }
}

impl Drop for SecondCable {
    fn drop(&mut self) {
        shell(
            "rdma link delete rxe2; rdma link delete rxa3; ip link delete rdma2
             for end in 1 2; do
                 ip rule delete pref 10 from 10.78.0.$end; ip rule delete pref 20 to 10.78.0.$end
             done",
        );
    }
}

/// The cable is bad as long as this lives.
pub(crate) struct BadCable;

impl BadCable {
    /// `how` is netem's: `loss 1% delay 1ms`.
    pub(crate) fn new(how: &str) -> Self {
        for end in ["rdma0", "rdma1"] {
            shell(&format!("tc qdisc replace dev {end} root netem {how}"));
        }
        Self
    }
}

impl Drop for BadCable {
    fn drop(&mut self) {
        for end in ["rdma0", "rdma1"] {
            shell(&format!("tc qdisc delete dev {end} root"));
        }
    }
}

/// Segments of TCP that this machine has received.
pub(crate) fn tcp_segments() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").expect("a mounted /proc");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next(), lines.next());
    let names = names.expect("names").split(' ');
    let mut pairs = names.zip(values.expect("values").split(' '));
    let (_, segments) = pairs.find(|(name, _)| *name == "InSegs").expect("counted");
    segments.parse().expect("a number")
}

/// Packets that a device has received.
pub(crate) fn packets(device: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts");
    let text = fs::read_to_string(path).expect("counted");
    text.trim().parse().expect("a number")
}

/// The RDMA devices that a process has open, by their files: `uverbs0` is `rxe0`.
pub(crate) fn open_devices(process: u32) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).expect("it lives");
    let files = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let names = files.filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
    let mut devices: Vec<String> = names.filter(|name| name.starts_with("uverbs")).collect();
    devices.sort();
    devices.dedup();
    devices
}
