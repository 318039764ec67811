//! The accelerator's name, and what a program chooses.

use std::{fmt, path::PathBuf};

use crate::driver::hlthunk::BusId;

/// The name in configuration, where `gaudi` is short for all that Gaudi has.
pub(super) const NAME: &str = "gaudi_copy";

/// What a program chooses.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) library: Option<PathBuf>,
    pub(super) synapse: Option<PathBuf>,
    pub(super) scal: Option<PathBuf>,
    pub(super) owning: Owning,
    /// PCI places of the cards that have the first numbers; `None`: by the vendor's variable.
    pub(super) numbers: Option<Vec<String>>,
    /// Modules of the cards that are used, in the same way.
    pub(super) modules: Option<Vec<u32>>,
    pub(super) exports: bool,
    pub(super) ipc: bool,
}

impl Options {
    pub(super) fn new(library: Option<PathBuf>, owning: Owning) -> Self {
        Self {
            library,
            synapse: None,
            scal: None,
            owning,
            numbers: None,
            modules: None,
            exports: true,
            ipc: true,
        }
    }
}

/// The variable that says which cards this process opens.
pub(super) const OWN: &str = "WHARF_GAUDI_OWN";

/// Which cards are opened, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Owning {
    /// One whose memory is allocated, when that is done first.
    #[default]
    AtAllocation,
    /// None.
    None,
    /// All, at the start.
    All,
    /// These, at the start; no others.
    These(Vec<Choice>),
    /// What was given is no choice, and why.
    Wrong(String),
}

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Bus(BusId),
    Module(u32),
    Ordinal(u16),
    /// To be acquired by Synapse.
    Synapse(Box<Self>),
}

impl Choice {
    fn parse(word: &str) -> Option<Self> {
        let word = word.trim();
        if let Some(module) = word.strip_prefix("module:") {
            return module.parse().ok().map(Self::Module);
        }
        if let Ok(ordinal) = word.parse() {
            return Some(Self::Ordinal(ordinal));
        }
        word.parse().ok().map(Self::Bus)
    }

    pub(super) fn is_by_synapse(&self) -> bool {
        matches!(self, Self::Synapse(_))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bus(bus_id) => bus_id.fmt(f),
            Self::Module(module) => write!(f, "module:{module}"),
            Self::Ordinal(ordinal) => ordinal.fmt(f),
            Self::Synapse(choice) => choice.fmt(f),
        }
    }
}

impl Owning {
    /// From what the variable has.
    pub(super) fn parse(text: &str) -> Self {
        match text.trim() {
            "" | "auto" => return Self::AtAllocation,
            "none" => return Self::None,
            "all" => return Self::All,
            _ => {}
        }
        let choices = text
            .split(',')
            .map(|word| match word.trim().strip_prefix("synapse:") {
                Some(word) => Choice::parse(word).map(|choice| Choice::Synapse(Box::new(choice))),
                None => Choice::parse(word),
            });
        match choices.collect() {
            Some(choices) => Self::These(choices),
            None => Self::Wrong(format!(
                "{text:?} names no Gaudi cards: auto, none, all, or places such as 0000:33:00.0, module:3 or 0, with commas between, each after synapse: if Synapse is to acquire it"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cards_are_named_by() {
        assert_eq!(Owning::parse(""), Owning::AtAllocation);
        assert_eq!(Owning::parse("all"), Owning::All);
        assert_eq!(Owning::parse("none"), Owning::None);
        let Owning::These(choices) = Owning::parse("module:3, 0000:33:00.0,1") else {
            panic!("no choice");
        };
        assert_eq!(choices[0], Choice::Module(3));
        assert_eq!(choices[2], Choice::Ordinal(1));
        assert!(matches!(&choices[1], Choice::Bus(bus) if bus.as_str() == "0000:33:00.0"));
        for wrong in [
            "module:",
            "module:x",
            "all,1",
            "70000",
            "-1",
            "a,,b",
            ",",
            "0000:33:00",
        ] {
            assert!(
                matches!(Owning::parse(wrong), Owning::Wrong(_)),
                "{wrong:?}"
            );
        }
    }
}
