//! Groups that meet in etcd. Against a real one: Debian's `etcd-server`, or another `etcd` in the path.

mod support;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::{Child as Process, Command, Stdio},
    time::Duration,
};

use futures::{StreamExt, future::try_join_all, try_join};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, timeout_at},
};
use wharf::{
    ErrorKind,
    channel::bootstrap::{
        Bootstrap, BootstrapOptions, Change, EtcdBootstrap, EtcdOptions, Member, Members,
        Membership,
    },
};

use support::{Child, LIMIT, child, own_place, this_test, watchdog};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// An etcd with its data in a folder of its own; both go with it.
struct Etcd {
    process: Option<Process>,
    client: SocketAddr,
    peer: SocketAddr,
    data: tempfile::TempDir,
}

impl Etcd {
    fn start() -> Self {
        let mut etcd = Self {
            process: None,
            client: own_place(),
            peer: own_place(),
            data: tempfile::tempdir().expect("a folder"),
        };
        etcd.revive();
        etcd
    }

    fn revive(&mut self) {
        let client = format!("http://{}", self.client);
        let peer = format!("http://{}", self.peer);
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data.path())
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // Leases are no shorter than three halves of the election's time.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(["--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd");
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it is ours");
        }
    }

    fn options(&self) -> EtcdOptions {
        EtcdOptions::new([self.place()])
            .lease(LEASE)
            .listen("127.0.0.1:0")
    }

    fn place(&self) -> String {
        self.client.to_string()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

const JOIN: Duration = Duration::from_secs(30);
/// Of members who are to stay: renewed each second, so that a stall of etcd or of a member that is shorter than two does no harm.
const LEASE: Duration = Duration::from_secs(3);
/// Of one whose lease is to run out.
const SHORT: Duration = Duration::from_secs(2);

async fn next(members: &mut Members) -> Change {
    watchdog(LIMIT, members.next()).await.expect("never ends")
}

async fn joined(members: &mut Members) -> String {
    match next(members).await {
        Change::Joined(member) => member.name,
        other => panic!("somebody joined, and not {other:?}"),
    }
}

async fn left(members: &mut Members) -> String {
    match next(members).await {
        Change::Left(member) => member.name,
        other => panic!("somebody left, and not {other:?}"),
    }
}

fn apply(there: &mut BTreeSet<String>, change: Change) {
    let is_news = match change {
        Change::Joined(member) => {
            let address = if member.name == "d" { "far" } else { "here" };
            assert_eq!(member.address, address);
            there.insert(member.name)
        }
        Change::Left(member) => there.remove(&member.name),
        other => panic!("{other:?}"),
    };
    assert!(is_news, "told twice: {there:?}");
}

/// Reads until these are there, and nobody else. On a machine that stood still for longer than a lease a member is seen to leave and to come again.
async fn until(members: &mut Members, there: &mut BTreeSet<String>, all: &[&str]) {
    let reading = async {
        while !there.iter().eq(all) {
            apply(there, next(members).await);
        }
    };
    watchdog(LIMIT, reading).await;
}

fn member_in_a_child() -> bool {
    let Some(mut parent) = child("member") else {
        return false;
    };
    let variable = |name: &str| std::env::var(name).expect("set by the parent");
    runtime().block_on(async {
        let lease = variable("WHARFTEST_LEASE").parse().expect("seconds");
        let options =
            EtcdOptions::new([variable("WHARFTEST_PLACE")]).lease(Duration::from_secs(lease));
        let name = variable("WHARFTEST_NAME");
        let membership = Membership::join(&options, "group", &name, "here", JOIN)
            .await
            .expect("joined");
        parent.say("in");
        if parent.hear().await == "leave" {
            membership.leave().await;
            parent.say("out");
        } else {
            parent.wait_for_death().await;
        }
    });
    true
}

fn member(test: &str, etcd: &Etcd, name: &str, lease: Duration) -> Child {
    Child::start(
        test,
        "member",
        &[
            ("WHARFTEST_PLACE", &etcd.place()),
            ("WHARFTEST_NAME", name),
            ("WHARFTEST_LEASE", &lease.as_secs().to_string()),
        ],
    )
}

/// Three processes: one leaves, one is killed. Then etcd is, and comes back.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn membership() {
    if member_in_a_child() {
        return;
    }
    let mut etcd = Etcd::start();
    let mut a = member(this_test!(), &etcd, "a", LEASE);
    let mut b = member(this_test!(), &etcd, "b", SHORT);
    let mut c = member(this_test!(), &etcd, "c", LEASE);
    runtime().block_on(async {
        let mut members = Members::of(&etcd.options(), "group").expect("watching");
        let mut there = BTreeSet::new();
        until(&mut members, &mut there, &["a", "b", "c"]).await;
        for member in [&mut a, &mut b, &mut c] {
            assert_eq!(member.hear().await, "in");
        }

        // A name is one's.
        let error = Membership::join(&etcd.options(), "group", "c", "there", JOIN)
            .await
            .expect_err("c is there, and stays");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("wharf/group/c"), "{error}");

        a.say("leave");
        assert_eq!(a.hear().await, "out");
        until(&mut members, &mut there, &["b", "c"]).await;

        // Its lease runs out.
        b.kill();
        until(&mut members, &mut there, &["c"]).await;

        // Those who are there stay, by their lease or by a new one; those who come wait.
        etcd.kill();
        let options = etcd.options();
        let coming =
            tokio::spawn(
                async move { Membership::join(&options, "group", "d", "far", JOIN).await },
            );
        // Longer than a lease.
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        etcd.revive();
        let d = watchdog(LIMIT, coming)
            .await
            .expect("no panic")
            .expect("joined");
        until(&mut members, &mut there, &["c", "d"]).await;
        assert!(d.is_registered());
        // `c` renews its lease: otherwise it would leave, and come again, three times meanwhile. Once is a machine that stood still.
        let mut anew = Members::of(&etcd.options(), "group").expect("watching");
        let mut there = BTreeSet::new();
        until(&mut anew, &mut there, &["c", "d"]).await;
        let end = Instant::now() + LEASE * 10 / 3;
        let mut stalls = 0;
        while let Ok(change) = timeout_at(end, next(&mut anew)).await {
            stalls += usize::from(matches!(&change, Change::Left(member) if member.name == "c"));
            apply(&mut there, change);
        }
        assert!(stalls < 2, "`c` left {stalls} times");
        until(&mut anew, &mut there, &["c", "d"]).await;
        d.leave().await;
        until(&mut anew, &mut there, &["c"]).await;
    });
    c.kill();
    a.finish();
}

/// An etcd that has forgotten everything: the lease is made anew.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn forgotten() {
    let mut etcd = Etcd::start();
    runtime().block_on(async {
        let options = etcd.options();
        let member = Membership::join(&options, "group", "a", "here", JOIN)
            .await
            .expect("joined");
        let mut members = member.members();
        assert_eq!(joined(&mut members).await, "a");
        etcd.kill();
        support::until("the loss", || !member.is_registered()).await;
        etcd.data = tempfile::tempdir().expect("a folder");
        etcd.revive();
        support::until("the place", || member.is_registered()).await;
        let mut anew = Members::of(&options, "group").expect("watching");
        assert_eq!(joined(&mut anew).await, "a");
        // Whether the watcher has seen it go depends on who was first.
        drop(member);
        assert_eq!(left(&mut anew).await, "a");
    });
}

/// A way to etcd that can be closed.
async fn way(to: String, is_open: watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let place = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.expect("a connection");
            let (to, mut is_open) = (to.clone(), is_open.clone());
            tokio::spawn(async move {
                if !*is_open.borrow() {
                    return;
                }
                let Ok(mut far) = TcpStream::connect(to).await else {
                    return;
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    _ = is_open.wait_for(|is_open| !is_open) => {}
                }
            });
        }
    });
    place
}

/// A place is given back while its member is about to reach etcd anew, too.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn leaving_between_two_tries() {
    let etcd = Etcd::start();
    runtime().block_on(watchdog(LIMIT, async {
        let (open, is_open) = watch::channel(true);
        let options = EtcdOptions::new([way(etcd.place(), is_open).await]);
        let options = options.lease(Duration::from_secs(12));
        let member = Membership::join(&options, "group", "a", "here", JOIN)
            .await
            .expect("joined");
        open.send_replace(false);
        support::until("the loss", || !member.is_registered()).await;
        open.send_replace(true);
        member.leave().await;
        // Who is there is told in the order of names.
        let _other = Membership::join(&etcd.options(), "group", "z", "", JOIN)
            .await
            .expect("joined");
        let mut members = Members::of(&etcd.options(), "group").expect("watching");
        assert_eq!(joined(&mut members).await, "z");
    }));
}

/// Longer than any clock shows.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn a_lease_for_ever() {
    let etcd = Etcd::start();
    runtime().block_on(watchdog(LIMIT, async {
        let options = etcd.options().lease(Duration::MAX);
        let member = Membership::join(&options, "group", "a", "", JOIN).await;
        let member = member.expect("joined");
        assert!(member.is_registered());
        member.leave().await;
    }));
}

/// No etcd: an error that says so, in time.
#[test]
fn absent() {
    runtime().block_on(watchdog(LIMIT, async {
        let place = own_place().to_string();
        let options = EtcdOptions::new([place.as_str()]);
        let error = Membership::join(&options, "group", "a", "", Duration::from_millis(700))
            .await
            .expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(error.to_string().contains(&place), "{error}");
        for (group, name) in [("", "a"), ("a/b", "a"), ("a", ""), ("a", "b/c")] {
            let error = Membership::join(&options, group, name, "", JOIN)
                .await
                .expect_err("no name");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let nowhere = EtcdOptions::new(["http://[nonsense"]);
        let error = Membership::join(&nowhere, "group", "a", "", JOIN)
            .await
            .expect_err("not a place");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }));
}

/// Ranks that know nothing but etcd.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn bootstrap() {
    let etcd = Etcd::start();
    runtime().block_on(watchdog(LIMIT, async {
        let options = BootstrapOptions::new().deadline(Duration::from_secs(30));
        let place = etcd.options();
        // By number, in any order, and by what is free, which it is known to be once the numbers are taken.
        let mut members = Members::of(&place, "job").expect("watching");
        let join = |rank| EtcdBootstrap::join(&place, "job", rank, 3, &options);
        let last = async {
            joined(&mut members).await;
            joined(&mut members).await;
            join(None).await
        };
        let group = try_join!(join(Some(2)), join(Some(0)), last).expect("a group");
        let group = [group.0, group.1, group.2];
        let all = group
            .iter()
            .map(|rank| rank.all_gather(vec![rank.rank() as u8].into()));
        for all in try_join_all(all).await.expect("gathered") {
            assert_eq!(all, [[0].as_slice(), &[1], &[2]]);
        }
        // A number is one's.
        let error = EtcdBootstrap::join(&place, "job", Some(1), 3, &options)
            .await
            .expect_err("there is a rank 1");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        let mut members = group[0].members();
        for _ in 0..3 {
            joined(&mut members).await;
        }
        drop(group);
        let error = EtcdBootstrap::join(
            &place,
            "other",
            Some(1),
            2,
            &options.deadline(Duration::from_secs(1)),
        )
        .await
        .expect_err("nobody else");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    }));
}

/// Who takes any number, and counts differently, is told so at once: another number would not help.
#[test]
#[ignore = "needs etcd: Debian's package etcd-server"]
fn contradiction() {
    let etcd = Etcd::start();
    runtime().block_on(watchdog(LIMIT, async {
        let options = BootstrapOptions::new().deadline(Duration::from_secs(20));
        let place = etcd.options();
        let mut members = Members::of(&place, "job").expect("watching");
        let zero = EtcdBootstrap::join(&place, "job", Some(0), 3, &options);
        let other = async {
            joined(&mut members).await;
            EtcdBootstrap::join(&place, "job", None, 2, &options).await
        };
        let (zero, other) = tokio::join!(zero, other);
        for error in [zero.map(drop), other.map(drop)] {
            let error = error.expect_err("a contradiction");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            let text = "rank 1 counts 2 ranks, rank 0 counts 3";
            assert!(error.to_string().contains(text), "{error}");
        }
    }));
}

/// As those of all other public types, which `tests/send_sync.rs` lists.
#[test]
fn auto_traits() {
    fn demand<T: Send + Sync + Unpin + 'static>() {}
    demand::<EtcdOptions>();
    demand::<EtcdBootstrap>();
    demand::<Membership>();
    demand::<Members>();
    demand::<Member>();
    demand::<Change>();
}
