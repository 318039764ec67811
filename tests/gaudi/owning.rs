//! Which cards a process opens, and when; cards that cannot be had.

use std::{sync::Arc, time::Duration};

use wharf::{Context, ErrorKind, transport::Accelerator as _};

use crate::{
    machine::{DEVICE, Machine, OTHER, patiently},
    support::block_at_rest,
};

#[test]
fn named_cards_are_opened_at_the_start() {
    for (cards, count) in [
        ("all", 2),
        ("module:7", 1),
        ("0000:44:00.0", 1),
        ("1, 0", 2),
    ] {
        let machine = Machine::new(&[]);
        let gaudi = machine.gaudi().own_cards(cards);
        patiently(|| gaudi.probe());
        assert_eq!(machine.live("sessions"), count, "{cards}");
        let context = Context::builder().accelerator(Arc::new(gaudi.clone()));
        drop(context.build().expect("a context"));
        assert_eq!(machine.calls("hlthunk_open"), count, "once");
        drop(gaudi);
        machine.check_gone();
    }
}

#[test]
fn cards_that_are_not_named_are_not_opened() {
    let machine = Machine::new(&[]);
    for (cards, refused) in [("none", DEVICE), ("0", OTHER)] {
        let gaudi = machine.gaudi().own_cards(cards);
        gaudi.probe().expect("fits");
        let error = gaudi.domain().allocate(refused, 8).expect_err("not named");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("WHARF_GAUDI_OWN"), "{error}");
    }
    for wrong in ["5", "module:77", "0000:99:00.0", "everything"] {
        let error = machine.gaudi().own_cards(wrong).probe().expect_err(wrong);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    }
}

#[test]
fn a_card_that_another_has_is_a_clear_error() {
    let machine = Machine::new(&[]);
    machine.control("busy 0 1");
    let gaudi = machine.gaudi().own_cards("all");
    let error = gaudi.probe().expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let text = error.to_string();
    for part in ["0000:33:00.0", "hlthunk_open", "another process"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // It was asked for: there is no context without it. Where it was not, there is.
    let built = Context::builder().accelerator(Arc::new(gaudi)).build();
    assert_eq!(built.expect_err("taken").kind(), ErrorKind::Exhausted);
    let plain = Context::builder().accelerator(Arc::new(machine.gaudi()));
    let plain = plain.build().expect("a context");
    assert!(plain.transports().any(|name| name == "gaudi_copy"));
    let domain = machine.gaudi().domain();
    let error = domain.allocate(DEVICE, 8).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    // The other is free, and this one later.
    drop(machine.allocate(&domain, OTHER, 8));
    machine.control("busy 0 0");
    drop(machine.allocate(&domain, DEVICE, 8));
}

#[test]
fn a_card_is_open_once_however_many_contexts_there_are() {
    let machine = Machine::new(&[]);
    let (one, other) = (machine.gaudi(), machine.gaudi());
    let here = machine.allocate(&one.domain(), DEVICE, 100);
    let there = machine.allocate(&other.domain(), DEVICE, 100);
    assert_eq!(machine.calls("hlthunk_open"), 1);
    assert!(!here.range().overlaps(there.range()));
    let known = one.domain().detect(there.range()).expect("no error");
    assert_eq!(known.expect("known").id, there.id());
    drop((one, here));
    let left = block_at_rest("cards", Duration::from_millis(5), || {
        machine.live("sessions")
    });
    assert_eq!(left, 1, "somebody has it still");
    drop((other, there));
    machine.check_gone();
}

#[test]
fn a_gaudi_3_is_not_for_submissions() {
    let machine = Machine::new(&[("chip", 3)]);
    let gaudi = machine.gaudi();
    gaudi.probe().expect("a card is there");
    let error = gaudi.domain().allocate(DEVICE, 8).expect_err("Synapse's");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("Synapse"), "{error}");
    machine.check_gone();
}

#[test]
fn no_card_and_no_library() {
    let machine = Machine::new(&[("cards", 0)]);
    let error = machine.gaudi().probe().expect_err("no card");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let gaudi = wharf::transport::gaudi::GaudiCopy::with_library("/nowhere/libhl-thunk.so");
    let error = gaudi.probe().expect_err("no library");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(machine.path().exists());
}
