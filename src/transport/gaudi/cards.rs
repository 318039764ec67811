//! The cards of this machine, found by their control nodes: none is opened, nobody is kept out, and neither Synapse nor SCAL is initialised.
//!
//! A card's number, that of `MemoryType::Gaudi`, is its place in the order of the nodes, as the vendor's tools count, or what `GAUDI_MAPPING_TABLE` says (`mapping`). Its module and its
//! PCI place stay what they are when the machine restarts; the kernel's own numbers do not.
//! `HABANA_VISIBLE_MODULES`, the vendor's variable, hides the cards that it does not name.

use super::mapping::Table;
use crate::{
    driver::hlthunk::{CardInfo, Chip, HlThunk, State},
    error::{Error, ErrorKind, Result},
    types::MemoryType,
};

/// The vendor's variable: modules with commas between, or `all`.
pub(super) const VISIBLE: &str = "HABANA_VISIBLE_MODULES";

/// The cards, by number. 256 attempts to open a node, microseconds each where there is none.
/// Errors: `Unsupported`: there are none, or none says what it is; `Configuration`: a table or a list of modules does not fit them.
pub(super) fn find(
    thunk: &'static HlThunk,
    table: Option<Table>,
    visible: Option<Visible>,
) -> Result<Vec<CardInfo>> {
    let mut found: Vec<CardInfo> = Vec::new();
    let mut silent = None;
    for card in thunk.discover() {
        match card {
            Ok(card) => found.push(card),
            Err(error) => {
                tracing::warn!(target: "wharf::gaudi", "a card is left out: {error}");
                silent = Some(error);
            }
        }
    }
    if found.is_empty() {
        let text = match silent {
            Some(error) => format!("no Gaudi card says what it is: {error}"),
            None => "there is no Gaudi card here (hl-smi lists them)".to_owned(),
        };
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    found.sort_by_key(|card| card.index);
    if let Some(Visible { said_by, modules }) = visible {
        let all: Vec<u32> = found.iter().map(|card| card.hw.module_id).collect();
        if let Some(absent) = modules.iter().find(|module| !all.contains(module)) {
            let text = format!(
                "{said_by}: no Gaudi card is module {absent}; there are {all:?} (hl-smi -Q index,module_id,bus_id)"
            );
            return Err(Error::new(ErrorKind::Configuration, text));
        }
        found.retain(|card| modules.contains(&card.hw.module_id));
    }
    match table {
        Some(table) => table.order(found),
        None => Ok(found),
    }
}

/// Which cards are used.
#[derive(Debug)]
pub(super) struct Visible {
    /// The variable or the method, for errors.
    said_by: &'static str,
    modules: Vec<u32>,
}

impl Visible {
    /// By the program.
    pub(super) fn given(modules: &[u32]) -> Self {
        Self {
            said_by: "GaudiCopy::modules",
            modules: modules.to_owned(),
        }
    }

    /// By the variable. `None`: all.
    /// Errors: `Configuration`.
    pub(super) fn parse(text: &str) -> Result<Option<Self>> {
        Ok(modules(text)?.map(|modules| Self {
            said_by: VISIBLE,
            modules,
        }))
    }
}

/// The modules that are visible; `None`: all.
fn modules(text: &str) -> Result<Option<Vec<u32>>> {
    /// Modules that a text may name: no server has so many.
    const MOST: usize = 256;
    let text = text.trim();
    if text.is_empty() || text == "all" {
        return Ok(None);
    }
    let words = text.split(',').take(MOST + 1);
    let modules: Option<Vec<u32>> = words.map(|word| word.trim().parse().ok()).collect();
    match modules {
        Some(modules) if modules.len() <= MOST => Ok(Some(modules)),
        _ => {
            let shown: String = text.chars().take(60).collect();
            let text = format!("{VISIBLE}: {shown:?} is no list of modules such as 0,1,3");
            Err(Error::new(ErrorKind::Configuration, text))
        }
    }
}

/// A Gaudi card of this machine, found without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaudiCard {
    number: u16,
    info: CardInfo,
}

impl GaudiCard {
    pub(super) fn new(number: usize, info: &CardInfo) -> Self {
        Self {
            number: u16::try_from(number).unwrap_or(u16::MAX),
            info: info.clone(),
        }
    }

    /// Its number in this process.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The type of its memory.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        MemoryType::Gaudi(self.number)
    }

    /// Its place in the server, which stays when the machine restarts.
    #[must_use]
    pub fn module_id(&self) -> u32 {
        self.info.hw.module_id
    }

    /// Its PCI place, as in `0000:33:00.0`.
    #[must_use]
    pub fn pci(&self) -> &str {
        self.info.bus_id.as_str()
    }

    /// The number of its device nodes, which may be another when the machine restarts.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.info.index
    }

    /// Its generation: `Gaudi`, `Gaudi 2`, `Gaudi 3`, or the number of one that is not known here.
    #[must_use]
    pub fn generation(&self) -> String {
        self.info.chip.to_string()
    }

    /// What it calls itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.hw.name
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.info.hw.dram_size
    }

    /// Whether it was in operation when it was found; else it is in reset, or an administrator must reset it.
    #[must_use]
    pub fn is_operational(&self) -> bool {
        matches!(self.info.state, State::Operational | State::Other(-1))
    }

    /// Whether copies go by command submissions, so that the card can be had without Synapse.
    #[must_use]
    pub fn takes_submissions(&self) -> bool {
        matches!(self.info.chip, Chip::Gaudi | Chip::Gaudi2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_modules() {
        assert_eq!(modules("").unwrap(), None);
        assert_eq!(modules("all").unwrap(), None);
        assert_eq!(modules(" 3, 0 ").unwrap(), Some(vec![3, 0]));
        for text in ["a", "1,,2", "-1", "0-3", &"1,".repeat(500)] {
            assert_eq!(
                modules(text).unwrap_err().kind(),
                ErrorKind::Configuration,
                "{text}"
            );
        }
    }
}
