//! `GAUDI_MAPPING_TABLE` and `HABANA_VISIBLE_MODULES`: tables that fit, and tables that lie. Alone in a process, whose variables they are.
//!
//! # Safety
//! The process runs this test alone, and has no thread that reads variables meanwhile.
#![allow(unsafe_code)]

use std::sync::Arc;

use wharf::{
    Context, ErrorKind, MemoryType, Result,
    transport::{Accelerator as _, gaudi::GaudiCopy},
};

use crate::{
    machine::Machine,
    support::{Child, child, this_test},
};

const TABLE: &str = "GAUDI_MAPPING_TABLE";
const VISIBLE: &str = "HABANA_VISIBLE_MODULES";

fn set(variable: &str, text: &str) {
    // SAFETY: as the file says.
    unsafe { std::env::set_var(variable, text) };
}

/// The PCI places of the cards, by number.
fn places(machine: &Machine) -> Result<Vec<String>> {
    let cards = machine.gaudi().cards()?;
    for (number, card) in cards.iter().enumerate() {
        assert_eq!(usize::from(card.number()), number);
    }
    Ok(cards.iter().map(|card| card.pci().to_owned()).collect())
}

fn refused(machine: &Machine, said: &[&str]) {
    let error = machine.gaudi().probe().expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for part in said {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    let error = machine.builder().build().expect_err("shows at the start");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
}

fn alone(test: &str) {
    Child::start(test, "alone", &[]).finish();
}

#[test]
fn a_table_gives_the_numbers() {
    let Some(_) = child("alone") else {
        return alone(this_test!());
    };
    let machine = Machine::new(&[("cards", 3)]);
    let [a, b, c] = ["0000:33:00.0", "0000:44:00.0", "0000:55:00.0"];
    assert_eq!(places(&machine).expect("cards"), [a, b, c]);
    for (table, wanted) in [
        ("", [a, b, c]),
        ("[]", [a, b, c]),
        (
            r#"[{"index":0,"module_id":5,"bus_id":"0000:55:00.0"},{"index":2,"module_id":7,"bus_id":"0000:33:00.0"},
               {"index":1,"module_id":6,"bus_id":"0000:44:00.0"}]"#,
            [c, b, a],
        ),
        // Those that it does not name have the numbers that are left.
        (r#"[{"index":1,"bus_id":"55:00.0"}]"#, [a, c, b]),
        (
            r#"[{"index":0,"bus_id":"0000:44:00.0","more":[1]}]"#,
            [b, a, c],
        ),
    ] {
        set(TABLE, table);
        assert_eq!(places(&machine).expect(table), wanted, "{table}");
    }
    // The number is that of the memory's type.
    set(TABLE, r#"[{"index":0,"bus_id":"0000:55:00.0"}]"#);
    let gaudi = machine.gaudi();
    let memory = gaudi.domain().allocate(MemoryType::Gaudi(0), 64);
    drop(memory.expect("memory"));
    assert!(machine.control("trace").contains("hlthunk_open"));
    let card = gaudi.card_by_module(5).expect("a card");
    assert_eq!((card.number(), card.pci()), (0, c));
    drop(gaudi);
    machine.check_gone();
}

#[test]
fn a_table_that_lies_is_refused() {
    let Some(_) = child("alone") else {
        return alone(this_test!());
    };
    let machine = Machine::new(&[]);
    for (table, said) in [
        ("{", "no JSON"),
        ("\"all\"", "no array"),
        (
            r#"[{"index":0,"bus_id":"0000:99:00.0"}]"#,
            "entry 0: no Gaudi card at 0000:99:00.0",
        ),
        (
            r#"[{"index":0,"module_id":6,"bus_id":"0000:33:00.0"}]"#,
            "entry 0: the card at 0000:33:00.0 is module 7, not 6",
        ),
        (
            r#"[{"index":2,"bus_id":"0000:33:00.0"}]"#,
            "entry 0: index 2 with 2 cards",
        ),
        (
            r#"[{"index":0,"bus_id":"0000:33:00.0"},{"index":0,"bus_id":"0000:44:00.0"}]"#,
            "entry 1: entry 0 has index 0",
        ),
        (
            r#"[{"index":0,"bus_id":"0000:33:00.0"},{"index":1,"bus_id":"33:00.0"}]"#,
            "entry 1: entry 0 has bus_id",
        ),
        (
            r#"[{"index":0,"module_id":7,"bus_id":"0000:33:00.0"},{"index":1,"module_id":7,"bus_id":"0000:44:00.0"}]"#,
            "entry 1: entry 0 has module_id 7",
        ),
        (r#"[{"index":0}]"#, "entry 0: without a bus_id"),
    ] {
        set(TABLE, table);
        refused(&machine, &[TABLE, said]);
    }
    set(TABLE, &"[".repeat(65 << 10));
    refused(&machine, &[TABLE, "too long"]);
    assert_eq!(machine.calls("hlthunk_open"), 0);
    machine.check();
}

/// By the program, whatever the variables say.
#[test]
fn what_the_program_says() {
    let Some(_) = child("alone") else {
        return alone(this_test!());
    };
    let machine = Machine::new(&[("cards", 3)]);
    let [a, b, c] = ["0000:33:00.0", "0000:44:00.0", "0000:55:00.0"];
    set(TABLE, "no table");
    set(VISIBLE, "no list");
    let gaudi = || machine.gaudi().modules([5, 7, 6]);
    let places = |gaudi: GaudiCopy| -> Vec<String> {
        let cards = gaudi.cards().expect("cards");
        cards.iter().map(|card| card.pci().to_owned()).collect()
    };
    assert_eq!(places(gaudi().numbered([c, "44:00.0"])), [c, b, a]);
    assert_eq!(places(gaudi().numbered([""; 0])), [a, b, c]);
    assert_eq!(places(gaudi().modules([6]).numbered([b])), [b]);
    for (wrong, said) in [
        (gaudi().numbered(["here"]), "GaudiCopy::numbered: \"here\""),
        (gaudi().numbered([a, "33:00.0"]), "there twice"),
        (
            gaudi().numbered(["0000:99:00.0"]),
            "GaudiCopy::numbered: entry 0: no Gaudi card at 0000:99:00.0",
        ),
        (
            gaudi().modules([4]).numbered([a]),
            "GaudiCopy::modules: no Gaudi card is module 4",
        ),
    ] {
        let error = wrong.probe().expect_err("must be refused");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(said), "{said} in {error}");
    }
    machine.check();
}

#[test]
fn modules_that_are_hidden() {
    let Some(_) = child("alone") else {
        return alone(this_test!());
    };
    let machine = Machine::new(&[]);
    let [a, b] = ["0000:33:00.0", "0000:44:00.0"];
    for (visible, wanted) in [("all", vec![a, b]), ("6", vec![b]), (" 6 , 7", vec![a, b])] {
        set(VISIBLE, visible);
        assert_eq!(places(&machine).expect("cards"), wanted, "{visible}");
    }
    for (visible, said) in [
        ("0", "module 0"),
        ("6,x", "no list"),
        ("6,6,7,8", "module 8"),
    ] {
        set(VISIBLE, visible);
        refused(&machine, &[VISIBLE, said]);
    }
    // A table cannot name what is hidden.
    set(VISIBLE, "6");
    set(TABLE, r#"[{"index":0,"bus_id":"0000:33:00.0"}]"#);
    refused(&machine, &[TABLE, a, b]);
    set(TABLE, "");
    let context = Context::builder().accelerator(Arc::new(machine.gaudi()));
    drop(context.build().expect("a context"));
    machine.check();
}
