//! Cards are found without taking any; what is wrong with one is said with its name, the call and what helps.

use wharf::{ErrorKind, MemoryType, transport::Accelerator as _, transport::gaudi::GaudiCopy};

use crate::{
    machine::{DEVICE, Machine, OTHER, patiently},
    support::{Child, child, emulated, this_test},
};

#[test]
fn cards_are_found_and_chosen() {
    let machine = Machine::new(&[]);
    let gaudi = machine.gaudi();
    let cards = gaudi.cards().expect("cards");
    let found: Vec<_> = cards
        .iter()
        .map(|card| (card.number(), card.pci(), card.module_id(), card.node()))
        .collect();
    assert_eq!(
        found,
        [(0, "0000:33:00.0", 7, 0), (1, "0000:44:00.0", 6, 1)]
    );
    for card in &cards {
        assert_eq!(card.memory_type(), MemoryType::Gaudi(card.number()));
        assert_eq!(
            (card.generation().as_str(), card.memory()),
            ("Gaudi 2", 6 << 30)
        );
        assert!(card.is_operational() && card.takes_submissions());
        assert!(!card.name().is_empty());
        assert_eq!(
            &gaudi.card_by_module(card.module_id()).expect("a card"),
            card
        );
        assert_eq!(&gaudi.card_by_pci(card.pci()).expect("a card"), card);
    }
    assert_eq!(gaudi.card_by_pci("44:00.0").expect("a card").number(), 1);
    for error in [
        gaudi.card_by_module(3).expect_err("no such card"),
        gaudi.card_by_pci("0000:99:00.0").expect_err("no such card"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error.to_string().contains("0000:33:00.0 (module 7)"),
            "{error}"
        );
    }
    let error = gaudi.card_by_pci("here").expect_err("no place");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // Nothing was opened but control nodes, and those are closed; the cards were asked once.
    assert_eq!(
        (machine.calls("hlthunk_open"), machine.live("sessions")),
        (0, 0)
    );
    let asked = machine.calls("hlthunk_open_control");
    gaudi.probe().expect("cards");
    assert_eq!(machine.calls("hlthunk_open_control"), asked);
    machine.check();
}

/// Two processes that share the machine's cards.
#[test]
fn another_process_opens_what_this_one_has_found() {
    let gaudi = || GaudiCopy::with_library(emulated::hlthunk());
    if let Some(parent) = child("looks") {
        let context = wharf::Context::builder()
            .accelerator(std::sync::Arc::new(gaudi()))
            .build()
            .expect("a context");
        let cards = gaudi().cards().expect("cards");
        assert_eq!(cards.len(), 2);
        parent.say("found");
        return crate::fixture::run(async move {
            let mut parent = parent;
            assert_eq!(parent.hear().await, "mine");
            // The cards are found all the same; one is taken, the other free.
            assert_eq!(gaudi().cards().expect("cards").len(), 2);
            let error = gaudi().domain().allocate(DEVICE, 8).expect_err("taken");
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            for part in ["0000:33:00.0", "hlthunk_open", "another process", "hl-smi"] {
                assert!(error.to_string().contains(part), "{part} in {error}");
            }
            drop(context.allocate_on(OTHER, 8).await.expect("memory"));
            parent.say("so it is");
        });
    }
    if let Some(parent) = child("takes") {
        let gaudi = gaudi();
        let memory = gaudi.domain().allocate(DEVICE, 64).expect("memory");
        parent.say("mine");
        return crate::fixture::run(async move {
            let mut parent = parent;
            assert_eq!(parent.hear().await, "enough");
            drop((memory, gaudi));
        });
    }
    let folder = tempfile::tempdir().expect("a folder");
    let shared = [(
        "EMULATED_HLTHUNK_FOLDER",
        folder.path().to_str().expect("text"),
    )];
    let mut looks = Child::start(this_test!(), "looks", &shared);
    crate::fixture::run(async move {
        assert_eq!(looks.hear().await, "found");
        let mut takes = Child::start(this_test!(), "takes", &shared);
        assert_eq!(takes.hear().await, "mine");
        looks.say("mine");
        assert_eq!(looks.hear().await, "so it is");
        takes.say("enough");
        looks.finish();
        takes.finish();
    });
}

#[test]
fn a_card_in_reset() {
    let machine = Machine::new(&[]);
    machine.control("state 0 1");
    let gaudi = machine.gaudi();
    let cards = gaudi.cards().expect("cards");
    assert!(!cards[0].is_operational() && cards[1].is_operational());
    let error = gaudi.domain().allocate(DEVICE, 8).expect_err("in reset");
    for part in ["0000:33:00.0", "hlthunk_open", "try again"] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    let memory = machine.allocate(&gaudi.domain(), OTHER, 8);
    machine.control("state 0 0");
    let other = patiently(|| gaudi.domain().allocate(DEVICE, 8));
    drop((memory, other, gaudi));
    machine.check_gone();
}

#[test]
fn a_library_of_2021() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["hlthunk_device_mapped_memory_export_dmabuf_fd"];
    let path = emulated::without(&emulated::hlthunk(), &names, folder.path()).expect("a copy");
    let gaudi = GaudiCopy::with_library(path);
    for error in [
        gaudi.probe().expect_err("too old"),
        gaudi.cards().expect_err("too old"),
        gaudi.domain().allocate(DEVICE, 8).expect_err("too old"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("2021"), "{error}");
    }
}

#[test]
fn a_card_of_unknown_type() {
    let machine = Machine::new(&[("chip", 42)]);
    let gaudi = machine.gaudi();
    gaudi.probe().expect("cards are there");
    let card = gaudi.card_by_module(7).expect("a card");
    assert_eq!(card.generation(), "card of type 42");
    assert!(!card.takes_submissions());
    let error = gaudi.domain().allocate(DEVICE, 8).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("0000:33:00.0"), "{error}");
    assert_eq!(machine.calls("hlthunk_open"), 0);
}

#[test]
fn a_card_that_does_not_say_what_it_is_is_left_out() {
    let machine = Machine::new(&[]);
    machine.control("fault hlthunk_get_hw_ip_info@1=5");
    let gaudi = machine.gaudi();
    let cards = gaudi.cards().expect("the other");
    assert_eq!(cards.len(), 1);
    machine.control("fault hlthunk_get_hw_ip_info@1+=5");
    let error = machine.gaudi().cards().expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("hlthunk_get_hw_ip_info"),
        "{error}"
    );
}
