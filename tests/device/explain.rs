//! What is said of the way that a transfer takes, and transfers that are forbidden to stop on it.

use wharf::{Access, ErrorKind, MemoryType, Operation, Tag};

use crate::{
    common::{DEVICE, Ends, OTHER, filled},
    fixture::{Pair, Way, run, run_on_threads},
    support::accelerator::{FRAGMENT, FakeAccelerator},
};

const VERBS: [Operation; 5] = [
    Operation::TagSend,
    Operation::AmSend,
    Operation::Put,
    Operation::Get,
    Operation::Stream,
];

scenarios! {
    everywhere:

    async fn staged(way: Way) {
        let ends = Ends::new(way).await;
        let endpoint = &ends.here.endpoint;
        let first = endpoint.explain(Operation::Put, DEVICE, OTHER, 1 << 20);
        assert!(first.is_possible && first.fragment.is_none(), "{first}");
        drop(filled(&ends.here.worker, &ends.here.context, DEVICE, &[0]).await);
        for verb in VERBS {
            for (from, to) in [(DEVICE, MemoryType::Host), (MemoryType::Host, DEVICE), (DEVICE, OTHER)] {
                let what = endpoint.explain(verb, from, to, 1 << 20);
                let text = what.to_string();
                let here = if verb == Operation::Get { to } else { from };
                // Within a worker both ends are here.
                let mine = way == Way::Own || here != MemoryType::Host;
                if verb == Operation::Stream && to != MemoryType::Host {
                    assert!(!what.is_possible, "{text}");
                    continue;
                }
                // Between devices of one host the engine may do it alone, and network devices what is host memory here: the fake device's they do not
                // take, and what the peer's take only the peer knows.
                let by_network = way == Way::RcVerbs && here == MemoryType::Host;
                let direct = to == OTHER && !way.is_network() || by_network;
                assert!(what.is_possible && what.is_staged != direct, "{verb}: {text}");
                let last = what.plans.last().expect("a plan");
                assert!(last.when.is_none() && last.is_staged != (way == Way::Own && direct), "{what:?}");
                assert_eq!(what.fragment, mine.then_some(FRAGMENT), "{text}");
                assert_eq!(what.plans[0].is_staged, what.is_staged, "{what:?}");
                assert!(text.contains("cuda:0") && text.contains(way.transports()[0]), "{text}");
                let better = way == Way::Own && direct;
                assert!(better || !what.rejected.is_empty() && text.contains("\n  not "), "{text}");
            }
            let host = endpoint.explain(verb, MemoryType::Host, MemoryType::Host, 1 << 20);
            assert!(host.is_possible && !host.is_staged, "{host}");
        }
        let none = endpoint.explain(Operation::TagSend, MemoryType::Gaudi(0), MemoryType::Host, 8);
        assert!(!none.is_possible && none.chosen.contains("gaudi:0"), "{none}");
        let none = endpoint.explain(Operation::Atomic, MemoryType::Host, DEVICE, 8);
        assert!(!none.is_possible, "{none}");
        ends.end().await;
    }

    async fn forbidden(way: Way) {
        let device = FakeAccelerator::new();
        let accelerator = std::sync::Arc::new(device.clone());
        let context = way.builder().accelerator(accelerator).forbid_staging().build().expect("a context");
        let Pair { here, there } = Pair::of(&context, way).await;
        let kind = |error: &wharf::Error| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("forbids"), "{error}");
        };
        // What it takes of host memory is known once it is open.
        let open = async |side: &crate::fixture::Side| {
            let memory = async |memory_type| context.allocate_on(memory_type, 8).await.expect("memory");
            let pinned = memory(MemoryType::HostPinned).await.freeze();
            side.worker.copy(pinned, memory(DEVICE).await).await.expect("copied");
        };
        open(&here).await;
        open(&there).await;
        let said = here.endpoint.explain(Operation::TagSend, DEVICE, OTHER, 9);
        // Within a worker the engine does it; on one host it is tried, whatever the length.
        assert_eq!(said.is_possible, !way.is_network(), "{said}");
        assert_eq!(said.is_staged, way.is_network(), "{said}");
        assert_eq!(said.chosen.contains("forbids"), way != Way::Own, "{said}");
        let said = here.endpoint.explain(Operation::Put, DEVICE, MemoryType::Host, 9);
        assert!(!said.is_possible && said.chosen.contains("forbids"), "{said}");
        let memory = async |memory_type| context.allocate_on(memory_type, 100).await.expect("memory");
        let source = memory(DEVICE).await.freeze();
        // Where there might be a way, both ends learn when they have met that there is none.
        let mut inbox = there.worker.active_messages(1).open().expect("an inbox");
        match here.endpoint.tag_send(Tag(1), source.clone()).post() {
            Ok(send) if way == Way::Own => {
                there.worker.tag_recv(Tag(1), memory(OTHER).await).await.expect("received");
                send.await.expect("without a stop");
            }
            Err(error) => kind(&error.into_parts().0),
            Ok(send) => {
                let target = memory(OTHER).await;
                let error = there.worker.tag_recv(Tag(1), target).await.expect_err("forbidden");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert_eq!(send.await.expect_err("forbidden").kind(), ErrorKind::Unsupported);
            }
        }
        match here.endpoint.am_send(1, "", source.clone()).post() {
            Err(error) => kind(&error.into_parts().0),
            Ok(send) => {
                let message = inbox.recv().await.expect("a message");
                let error = message.receive(vec![0; 100]).await.expect_err("forbidden");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                kind(&send.await.expect_err("forbidden"));
            }
        }
        here.endpoint.tag_send(Tag(1), vec![0; 100]).await.expect("sent");
        let error = there.worker.tag_recv(Tag(1), memory(DEVICE).await).await.expect_err("forbidden");
        kind(&error.into_parts().0);
        let region = context.expose(vec![0; 100], Access::READ | Access::WRITE).await.expect("exposed");
        let host = here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        kind(&here.endpoint.put(source.clone(), host.clone()).await.expect_err("forbidden"));
        let error = here.endpoint.get(host, memory(DEVICE).await).await.expect_err("forbidden");
        kind(&error.into_parts().0);
        let region = context.expose(memory(OTHER).await, Access::READ | Access::WRITE).await.expect("exposed");
        let there = here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        kind(&here.endpoint.put(vec![1; 100], there.clone()).await.expect_err("forbidden"));
        kind(&here.endpoint.get(there, vec![1; 100]).await.expect_err("forbidden").into_parts().0);
        let mut stream = here.endpoint.stream().await.expect("a stream");
        kind(&stream.write_buffer(source.clone()).await.expect_err("forbidden"));
        let error = here.worker.copy(source.clone(), vec![0; 100]).await.expect_err("forbidden");
        kind(&error.into_parts().0);
        // Engines that need no stop go on.
        let pinned = here.worker.copy(source, memory(MemoryType::HostPinned).await).await.expect("copied");
        here.worker.copy(pinned.freeze(), memory(OTHER).await).await.expect("copied");
        device.check();
    }

    async fn forbidden_to_one_operation(way: Way) {
        let ends = Ends::new(way).await;
        let (here, there) = (&ends.here, &ends.there);
        let kind = |error: &wharf::Error| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        };
        let says = |error: &wharf::Error| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("this operation forbids"), "{error}");
        };
        let memory = async |side: &crate::fixture::Side, memory_type| {
            filled(&side.worker, &side.context, memory_type, &[1; 100]).await
        };
        let own = way == Way::Own;
        let source = memory(here, DEVICE).await.freeze();
        // Sends: refused at once, or when both ends have met.
        match here.endpoint.tag_send(Tag(1), source.clone()).forbid_staging().post() {
            Err(error) => says(&error.into_parts().0),
            Ok(send) => {
                let target = memory(there, OTHER).await;
                let received = there.worker.tag_recv(Tag(1), target).await;
                let sent = send.await;
                assert_eq!((received.is_ok(), sent.is_ok()), (own, own), "{sent:?}");
                sent.err().iter().for_each(kind);
            }
        }
        let mut inbox = there.worker.active_messages(1).open().expect("an inbox");
        match here.endpoint.am_send(1, "", source.clone()).forbid_staging().post() {
            Err(error) => says(&error.into_parts().0),
            Ok(send) => {
                let message = inbox.recv().await.expect("a message");
                let error = message.receive(vec![0; 100]).await.expect_err("forbidden");
                kind(&error.into_parts().0);
                says(&send.await.expect_err("forbidden"));
            }
        }
        // Receives.
        here.endpoint.tag_send(Tag(2), vec![0; 100]).await.expect("sent");
        let target = memory(there, DEVICE).await;
        let receive = there.worker.tag_recv(Tag(2), target).forbid_staging();
        says(&receive.await.expect_err("forbidden").into_parts().0);
        here.endpoint.am_send(1, "", vec![0; 100]).await.expect("sent");
        let message = inbox.recv().await.expect("a message");
        let receive = message.receive(memory(there, DEVICE).await).forbid_staging();
        says(&receive.await.expect_err("forbidden").into_parts().0);
        // Puts and gets.
        let rights = Access::READ | Access::WRITE;
        let region = there.context.expose(vec![0; 100], rights).await.expect("exposed");
        let host = here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        says(&here.endpoint.put(source.clone(), host.clone()).forbid_staging().await.expect_err("forbidden"));
        let get = here.endpoint.get(host.clone(), memory(here, DEVICE).await).forbid_staging();
        says(&get.await.expect_err("forbidden").into_parts().0);
        // Between host memories nothing ever stops.
        here.endpoint.put(vec![3; 100], host.clone()).forbid_staging().await.expect("put");
        let back = here.endpoint.get(host, vec![0; 100]).forbid_staging().await.expect("got");
        assert_eq!(back, [3; 100]);
        let region = there.context.expose(memory(there, OTHER).await, rights).await.expect("exposed");
        let far = here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        says(&here.endpoint.put(vec![1; 100], far.clone()).forbid_staging().await.expect_err("forbidden"));
        let put = here.endpoint.put(source.clone(), far.clone()).forbid_staging().await;
        assert_eq!(put.is_ok(), own, "{put:?}");
        put.err().iter().for_each(kind);
        let get = here.endpoint.get(far.clone(), memory(here, DEVICE).await).forbid_staging().await;
        assert_eq!(get.is_ok(), own, "{get:?}");
        drop(get);
        // Others go on as ever.
        here.endpoint.put(source.clone(), far).await.expect("put");
        let copy = here.worker.copy(source, vec![0; 100]).forbid_staging();
        says(&copy.await.expect_err("forbidden").into_parts().0);
        drop((inbox, region));
        let _ = here.endpoint.flush().await;
        ends.end().await;
    }
}
