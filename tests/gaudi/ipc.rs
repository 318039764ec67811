//! `gaudi_ipc`: memory of the cards of two processes, and of two cards of one.
//!
//! One process at a time has a card, so each has its own. Whether the driver lets one card reach the other's memory is the kernel's to say: on the emulated library this is
//! seen in processes that have it preloaded; in any other the kernel refuses, as mainline does.

use std::sync::Arc;

use tokio::runtime::Runtime;
use wharf::{
    Context, Descriptor, Endpoint, ErrorKind, MemoryType, Operation, Tag, Worker,
    transport::{Accelerator as _, gaudi::GaudiCopy},
};

use crate::{
    machine::{DEVICE, OTHER, bytes, filled, patiently},
    support::{
        Child, LIMIT, Parent, block_until, child, emulated,
        moved::{Before, taken},
        pattern, this_test, watchdog,
    },
};

/// More than a piece of any path, and no multiple of one.
const LENGTH: usize = (5 << 20) + 4099;
/// Transfers in each direction.
const ROUNDS: u64 = 2;

/// What the driver says when it is asked to let a card reach another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    /// As mainline: the call is not known.
    Mainline,
    /// The out-of-tree driver's answers, as 0, 1 or 2 of the emulator.
    Without,
    Reaches,
    NoWay,
}

const DRIVERS: [Driver; 4] = [
    Driver::Mainline,
    Driver::Without,
    Driver::Reaches,
    Driver::NoWay,
];

impl Driver {
    /// The environment of a process on it, and of the cards in a folder.
    fn variables(self, folder: &str) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("EMULATED_HLTHUNK_FOLDER", folder.to_owned()),
            ("WHARFTEST_DRIVER", format!("{self:?}")),
        ];
        let peers = match self {
            Self::Mainline => return all,
            Self::Without => 0,
            Self::Reaches => 1,
            Self::NoWay => 2,
        };
        let library = emulated::hlthunk().display().to_string();
        all.push(("LD_PRELOAD", library));
        all.push(("EMULATED_HLTHUNK_PEERS", format!("{peers}")));
        all
    }

    fn now() -> Self {
        let name = std::env::var("WHARFTEST_DRIVER").expect("told");
        let mut all = DRIVERS.into_iter();
        all.find(|driver| format!("{driver:?}") == name)
            .expect("one of them")
    }

    fn start(self, test: &str, part: &str, folder: &str) -> Child {
        let variables = self.variables(folder);
        let variables: Vec<(&str, &str)> = variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        Child::start(test, part, &variables)
    }

    /// How many times the kernel was asked, by who reaches or was refused.
    fn asked(self) -> u64 {
        u64::from(self != Self::Mainline)
    }

    /// What is said of a driver that does not.
    fn refusal(self) -> &'static str {
        match self {
            Self::NoWay => "no way for PCI transfers",
            _ => "HL_MEM_OP_REG_DMABUF_FD",
        }
    }
}

fn runtime() -> Runtime {
    let builder = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    builder.expect("a runtime")
}

fn gaudi() -> GaudiCopy {
    GaudiCopy::with_library(emulated::hlthunk())
}

fn context() -> Context {
    let builder = Context::builder().transports("shm").expect("known");
    let builder = builder.accelerator(Arc::new(gaudi()));
    builder.build().expect("a context")
}

fn count(name: &str) -> u64 {
    let answer = emulated::control_of(&emulated::hlthunk(), &format!("count {name}"));
    answer.parse().expect("a number")
}

fn live(name: &str) -> String {
    let text = emulated::control_of(&emulated::hlthunk(), "live");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

fn check() {
    let misuses = emulated::control_of(&emulated::hlthunk(), "misuses");
    assert_eq!(misuses, "");
}

/// Has both processes of a test talk: the first is given the second's word, and the other way around.
struct Talk {
    worker: Worker,
    context: Context,
    endpoint: Endpoint,
}

impl Talk {
    async fn first(parent: &Parent) -> Self {
        let context = context();
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        parent.say(listener.local_addr());
        let incoming = watchdog(LIMIT, listener.accept()).await;
        let incoming = incoming.expect("a request");
        let endpoint = incoming.accept().await.expect("a connection");
        Self {
            worker,
            context,
            endpoint,
        }
    }

    async fn second(parent: &mut Parent) -> Self {
        let context = context();
        let worker = Worker::new(&context).expect("a worker");
        let address = parent.hear().await;
        let endpoint = watchdog(LIMIT, worker.connect(address)).await;
        Self {
            worker,
            context,
            endpoint: endpoint.expect("a connection"),
        }
    }

    async fn send(&self, device: MemoryType, tag: u64) {
        let content = pattern(tag, LENGTH);
        let memory = filled(&self.worker, &self.context, device, &content).await;
        let sent = watchdog(LIMIT, self.endpoint.tag_send(Tag(tag), memory.freeze())).await;
        sent.expect("sent");
    }

    async fn receive(&self, device: MemoryType, tag: u64) {
        let room = self.context.allocate_on(device, LENGTH).await;
        let room = room.expect("memory");
        let got = watchdog(LIMIT, self.worker.tag_recv(Tag(tag), room)).await;
        let got = got.expect("received");
        assert_eq!(got.len, LENGTH);
        let found = bytes(&self.worker, got.buffer.freeze()).await;
        assert!(found == pattern(tag, LENGTH), "message {tag}");
    }

    async fn end(self) {
        let Self {
            worker,
            context,
            endpoint,
        } = self;
        drop(endpoint);
        worker.shutdown(LIMIT).await.expect("shut down");
        drop(context);
    }
}

/// That the way of what came in is the driver's, and is said.
fn explained(talk: &Talk, from: MemoryType, to: MemoryType) {
    let driver = Driver::now();
    let way = talk.endpoint.explain(Operation::TagRecv, from, to, LENGTH);
    let text = way.to_string();
    if driver == Driver::Reaches {
        assert!(
            !way.is_staged && text.contains("one copy by the engine"),
            "{text}"
        );
    } else {
        assert!(way.is_staged, "{text}");
        assert!(text.contains(driver.refusal()), "{text}");
    }
    let asked = count("ioctl");
    match driver {
        // Each message was of an allocation of its own. The second is where the first was, whose window is closed then, or beside it when that was
        // freed late: then one mapping of their pool serves both.
        Driver::Reaches => assert!((1..=ROUNDS).contains(&asked), "{asked}: {text}"),
        _ => assert_eq!(asked, driver.asked(), "asked once: {text}"),
    }
}

/// Plays a part, and tells that nothing is left of it.
fn over(part: impl FnOnce() -> Parent, word: &str) {
    let parent = part();
    block_until("all cards given back", || live("sessions") == "0");
    check();
    parent.say(word);
}

async fn first(mut parent: Parent) -> Parent {
    let talk = Talk::first(&parent).await;
    for round in 0..ROUNDS {
        talk.receive(DEVICE, 100 + round).await;
        talk.send(DEVICE, 200 + round).await;
    }
    explained(&talk, OTHER, DEVICE);
    // Device memory that is exposed, by put and get.
    let content = pattern(7, LENGTH);
    let memory = filled(&talk.worker, &talk.context, DEVICE, &content).await;
    let access = wharf::Access::READ | wharf::Access::WRITE;
    let region = talk.context.expose(memory, access).await.expect("exposed");
    let word = region.descriptor().expect("a descriptor");
    let sent = talk.endpoint.tag_send(Tag(1), word.to_bytes()).await;
    sent.expect("sent");
    talk.receive(DEVICE, 300).await;
    // The peer has put into it, and got it back.
    let again = talk.worker.tag_recv(Tag(2), vec![0; 1]);
    watchdog(LIMIT, again).await.expect("received");
    drop(region);
    assert_eq!(parent.hear().await, "end");
    talk.end().await;
    parent
}

async fn second(mut parent: Parent) -> Parent {
    let talk = Talk::second(&mut parent).await;
    for round in 0..ROUNDS {
        talk.send(OTHER, 100 + round).await;
        talk.receive(OTHER, 200 + round).await;
    }
    explained(&talk, DEVICE, OTHER);
    let word = talk.worker.tag_recv(Tag(1), vec![0; 4096]);
    let word = watchdog(LIMIT, word).await.expect("received");
    let word = word.buffer[..word.len].to_vec();
    let word = Descriptor::try_from(&word[..]).expect("a descriptor");
    let remote = talk.endpoint.import(&word).expect("a region");
    let room = talk.context.allocate_on(OTHER, LENGTH).await;
    let got = talk.endpoint.get(remote.clone(), room.expect("memory"));
    let got = watchdog(LIMIT, got).await.expect("got");
    assert!(bytes(&talk.worker, got.freeze()).await == pattern(7, LENGTH));
    let memory = filled(&talk.worker, &talk.context, OTHER, &pattern(8, LENGTH)).await;
    let put = talk.endpoint.put(memory.freeze(), remote.clone());
    watchdog(LIMIT, put).await.expect("put");
    let back = talk.endpoint.get(remote, vec![0; LENGTH]);
    assert!(watchdog(LIMIT, back).await.expect("got") == pattern(8, LENGTH));
    talk.send(OTHER, 300).await;
    talk.endpoint.tag_send(Tag(2), vec![1]).await.expect("sent");
    assert_eq!(parent.hear().await, "end");
    talk.end().await;
    parent
}

#[test]
fn two_processes_with_a_card_each() {
    if let Some(parent) = child("first") {
        return over(|| runtime().block_on(first(parent)), "over");
    }
    if let Some(parent) = child("second") {
        return over(|| runtime().block_on(second(parent)), "over");
    }
    for driver in DRIVERS {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().to_str().expect("text");
        let mut one = driver.start(this_test!(), "first", folder);
        let mut other = driver.start(this_test!(), "second", folder);
        runtime().block_on(async {
            other.say(one.hear().await);
            // What one has imported keeps the other's card: both close before either looks.
            one.say("end");
            other.say("end");
            assert_eq!(one.hear().await, "over");
            assert_eq!(other.hear().await, "over");
        });
        one.finish();
        other.finish();
    }
}

/// Who has the memory is killed while it is copied. The other goes on, and the card of the first is free when nobody reaches it any more.
async fn survivor(parent: Parent) -> Parent {
    let talk = Talk::first(&parent).await;
    talk.receive(DEVICE, 1).await;
    let room = talk.context.allocate_on(DEVICE, LENGTH).await;
    let mut next = room.expect("memory");
    let mut rounds = 0_u64;
    let error = loop {
        rounds += 1;
        if rounds == 4 {
            parent.say("kill it");
        }
        let got = async {
            tokio::select! {
                got = talk.worker.tag_recv(Tag(2), next) => got.map_err(wharf::Error::from),
                // Nothing is under way: no receive has a peer yet.
                ended = talk.endpoint.closed() => Err(ended),
            }
        };
        match watchdog(LIMIT, got).await {
            Ok(got) => next = got.buffer,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::PeerDied, "{error}");
    let content = pattern(5, LENGTH);
    let memory = filled(&talk.worker, &talk.context, DEVICE, &content).await;
    assert!(bytes(&talk.worker, memory.freeze()).await == content);
    talk.end().await;
    parent
}

#[test]
fn who_has_the_memory_is_killed() {
    if let Some(parent) = child("first") {
        let parent = runtime().block_on(survivor(parent));
        let other = gaudi();
        other.probe().expect("cards");
        drop(patiently(|| other.domain().allocate(OTHER, 4096)));
        drop(other);
        return over(|| parent, "goes on");
    }
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let talk = Talk::second(&mut parent).await;
            talk.send(OTHER, 1).await;
            let content = pattern(2, LENGTH);
            loop {
                let memory = filled(&talk.worker, &talk.context, OTHER, &content).await;
                if talk
                    .endpoint
                    .tag_send(Tag(2), memory.freeze())
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
    }
    for driver in [Driver::Reaches, Driver::Mainline] {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().to_str().expect("text");
        let mut one = driver.start(this_test!(), "first", folder);
        let mut other = driver.start(this_test!(), "second", folder);
        runtime().block_on(async {
            other.say(one.hear().await);
            assert_eq!(one.hear().await, "kill it");
            other.kill();
            assert_eq!(one.hear().await, "goes on");
        });
        one.finish();
    }
}

/// One process with both cards.
#[test]
fn between_two_cards_of_one_process() {
    if child("alone").is_some() {
        runtime().block_on(async {
            let driver = Driver::now();
            let gaudi = gaudi();
            let builder = Context::builder().transports("self").expect("known");
            let builder = builder.accelerator(Arc::new(gaudi.clone()));
            let context = builder.build().expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let unknown = gaudi.path(DEVICE, OTHER).expect("a way");
            assert!(unknown.to_string().contains("was not asked"), "{unknown}");
            // Shorter and longer than what is worth a mapping; odd ends.
            for length in [1, 4096, (1 << 20) + 1, (3 << 20) - 1, LENGTH, 4 << 20] {
                let content = pattern(length as u64, length);
                let from = filled(&worker, &context, DEVICE, &content).await;
                let room = context.allocate_on(OTHER, length).await;
                // Where it is not known whether the driver can, the first long copy finds out.
                let mut said = worker.explain_copy(DEVICE, OTHER, length);
                let before = Before::of(&worker, None).await;
                let there = worker.copy(from.freeze(), room.expect("memory")).await;
                let there = there.expect("copied");
                let moved = before.end().await;
                if length == LENGTH {
                    assert!(!said.is_staged, "{said}");
                    said = worker.explain_copy(DEVICE, OTHER, length);
                }
                let plan = taken(&said, |when| panic!("{when:?}"));
                assert_eq!(plan.is_staged, said.is_staged, "{said}");
                moved.check(&plan, length, (true, true), &said);
                let is_direct = driver == Driver::Reaches && length >= 4 << 20;
                assert_eq!(said.is_staged, !is_direct, "{said}");
                if length == LENGTH && driver != Driver::Reaches {
                    assert!(said.to_string().contains(driver.refusal()), "{said}");
                }
                assert!(
                    bytes(&worker, there.freeze()).await == content,
                    "{length} bytes"
                );
            }
            let path = gaudi.path(DEVICE, OTHER).expect("a way");
            let text = path.to_string();
            if driver == Driver::Reaches {
                assert!(!path.is_staged && text.contains("over PCI"), "{text}");
                assert_eq!(count("ioctl"), 2);
            } else {
                assert!(path.is_staged && text.contains(driver.refusal()), "{text}");
                assert_eq!(count("ioctl"), driver.asked(), "asked once");
            }
            // What may not stop is refused, or goes straight however short it is.
            for length in [1, LENGTH] {
                let from = filled(&worker, &context, DEVICE, &pattern(1, length)).await;
                let room = context.allocate_on(OTHER, length).await.expect("memory");
                let before = worker.metrics().staged;
                let copied = worker.copy(from.freeze(), room).forbid_staging().await;
                match (copied, driver) {
                    (Ok(there), Driver::Reaches) => {
                        let there = bytes(&worker, there.freeze()).await;
                        assert!(there == pattern(1, length), "{length} bytes");
                    }
                    (Err(error), _) if driver != Driver::Reaches => {
                        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    }
                    (copied, driver) => panic!("{driver:?}: {copied:?}"),
                }
                assert_eq!(worker.metrics().staged, before, "{length} bytes");
            }
            worker.shutdown(LIMIT).await.expect("shut down");
        });
        block_until("all cards given back", || live("sessions") == "0");
        return check();
    }
    for driver in DRIVERS {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().to_str().expect("text");
        driver.start(this_test!(), "alone", folder).finish();
    }
}

/// What cannot be exported, or is not to be.
#[test]
fn what_is_not_exported() {
    use wharf::transport::accelerator::Export;
    let machine = crate::machine::Machine::new(&[]);
    let gaudi = machine.gaudi();
    let domain = gaudi.domain();
    let memory = machine.allocate(&domain, DEVICE, 8192);
    let start = memory.range().start();
    for (at, length) in [(start, 8193), (start + 8192, 1), (start, 0), (4096, 8)] {
        let error = gaudi.export(at, length).expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let export = gaudi.export(start + 10, 100).expect("exported");
    assert!(matches!(export, Export::Descriptor(_)), "{export:?}");
    assert!(gaudi.exported(start, 8192).is_some());
    let without = machine.gaudi().ipc(false);
    match without.export(start, 100) {
        Ok(Export::Impossible(why)) => assert!(why.contains("gaudi_ipc"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop((memory, domain, gaudi, without));
    machine.check_gone();
}
