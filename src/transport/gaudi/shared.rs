//! The library and the cards, as the domain and all engines of one accelerator share them.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use super::{
    card::{self, OpenCard},
    cards::{self, Visible},
    guest::{self, Guest},
    mapping::{self, Table},
    options::{Choice, OWN, Options, Owning},
};
use crate::{
    driver::{
        hlthunk::{CardInfo, Chip, HlThunk},
        synapse::{self, Synapse},
    },
    error::{Error, ErrorKind, Operation, Result},
    memory::announce_device_runtime,
    transport::accelerator::{CacheOptions, Reaper},
    util::lock::Mutex,
};

/// What they share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The library's file; without, where it is looked for.
    pub(super) library: Option<PathBuf>,
    pub(super) owning: Owning,
    /// The files of Synapse and SCAL, in the same way.
    pub(super) synapse: Option<PathBuf>,
    pub(super) scal: Option<PathBuf>,
    /// What is said of their numbers, and which of them are used.
    numbers: Option<Vec<String>>,
    modules: Option<Vec<u32>>,
    /// Whether memory is offered as dma-bufs.
    pub(super) exports: bool,
    /// How host memory is registered with cards that are opened from now on.
    pub(super) cache: CacheOptions,
    thunk: OnceLock<&'static HlThunk>,
    cards: OnceLock<Vec<CardInfo>>,
    /// Cards that stay open as long as this.
    open: Open,
    pub(super) reaper: Reaper,
}

impl Shared {
    pub(super) fn new(options: Options) -> Self {
        Self {
            library: options.library,
            synapse: options.synapse,
            scal: options.scal,
            owning: options.owning,
            numbers: options.numbers,
            modules: options.modules,
            exports: options.exports,
            ..Self::default()
        }
    }

    /// The library, loaded. May take milliseconds.
    /// Errors: why it cannot be had.
    pub(super) fn load(&self) -> Result<&'static HlThunk> {
        if let Some(thunk) = self.thunk.get() {
            return Ok(thunk);
        }
        let thunk = HlThunk::load(self.library.as_deref())?;
        Ok(self.thunk.get_or_init(|| thunk))
    }

    /// The library, if it was loaded here.
    pub(super) fn loaded(&self) -> Option<&'static HlThunk> {
        self.thunk.get().copied()
    }

    /// The cards of this machine, by number (`cards`). Opens none. May take milliseconds, once.
    /// Errors: as of [`Shared::load`]; `Unsupported`: there are none, or none says what it is; `Configuration`: a variable is wrong.
    pub(super) fn cards(&self) -> Result<&[CardInfo]> {
        if let Some(cards) = self.cards.get() {
            return Ok(cards);
        }
        let variable = |name: &str| match std::env::var(name) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Ok(Some(text)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(Error::new(
                ErrorKind::Configuration,
                format!("{name}: {error}"),
            )),
        };
        let table = match &self.numbers {
            Some(places) => Some(Table::of_places(places)?),
            None => match variable(mapping::VARIABLE)? {
                Some(text) => Some(Table::parse(&text)?),
                None => None,
            },
        };
        let visible = match &self.modules {
            Some(modules) => Some(Visible::given(modules)),
            None => match variable(cards::VISIBLE)? {
                Some(text) => Visible::parse(&text)?,
                None => None,
            },
        };
        let found = cards::find(self.load()?, table, visible)?;
        Ok(self.cards.get_or_init(|| found))
    }

    /// How many cards are known by now.
    pub(super) fn count(&self) -> Option<u16> {
        let cards = self.cards.get()?;
        Some(u16::try_from(cards.len()).unwrap_or(u16::MAX))
    }

    fn info(&self, ordinal: u16) -> Result<&CardInfo> {
        let cards = self.cards()?;
        cards.get(usize::from(ordinal)).ok_or_else(|| {
            let text = format!(
                "there is no gaudi:{ordinal}; {} cards are here",
                cards.len()
            );
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// Opens the cards that are to be open from the start.
    /// Errors: `Configuration`: what was chosen is no card of this machine; and what opening said.
    pub(super) fn open_owned(&self) -> Result<()> {
        let count = self.cards()?.len();
        let wanted: Vec<(u16, bool)> = match &self.owning {
            Owning::AtAllocation | Owning::None => return Ok(()),
            Owning::Wrong(text) => return Err(Error::new(ErrorKind::Configuration, text.clone())),
            Owning::All => {
                let all = 0..u16::try_from(count).unwrap_or(u16::MAX);
                all.map(|ordinal| (ordinal, false)).collect()
            }
            Owning::These(choices) => {
                let find = |choice: &Choice| Ok((self.place(choice)?, choice.is_by_synapse()));
                choices.iter().map(find).collect::<Result<_>>()?
            }
        };
        for (ordinal, by_synapse) in wanted {
            self.open(ordinal, by_synapse)?;
        }
        Ok(())
    }

    /// Whether there are such cards.
    pub(super) fn is_demanded(&self) -> bool {
        match self.owning {
            Owning::These(_) => true,
            // All that there are, which may be none.
            Owning::All => self.cards().is_ok_and(|cards| !cards.is_empty()),
            _ => false,
        }
    }

    /// The number of a card that was chosen.
    fn place(&self, choice: &Choice) -> Result<u16> {
        let cards = self.cards()?;
        let found = match choice {
            Choice::Synapse(choice) => return self.place(choice),
            Choice::Bus(bus_id) => cards.iter().position(|card| card.bus_id == *bus_id),
            Choice::Module(module) => cards.iter().position(|card| card.hw.module_id == *module),
            Choice::Ordinal(ordinal) => {
                Some(usize::from(*ordinal)).filter(|index| *index < cards.len())
            }
        };
        found
            .and_then(|index| u16::try_from(index).ok())
            .ok_or_else(|| {
                let known = cards.iter().map(|card| card.bus_id.as_str());
                let text = format!(
                    "{choice} is no Gaudi card of this machine; there are {}",
                    known.collect::<Vec<_>>().join(", ")
                );
                Error::new(ErrorKind::Configuration, text)
            })
    }

    /// Opens a card, by Synapse where it has to be or is asked for.
    fn open(&self, ordinal: u16, by_synapse: bool) -> Result<Arc<OpenCard>> {
        let thunk = self.load()?;
        let info = self.info(ordinal)?;
        if let Some(card) = card::find(thunk, ordinal) {
            return Ok(self.keep(card));
        }
        if let Some(card) = self.join()?
            && card.ordinal() == ordinal
        {
            return Ok(card);
        }
        // Everybody is told before there can be memory.
        announce_device_runtime();
        if by_synapse || info.chip == Chip::Gaudi3 {
            let device = self.acquire(info)?;
            let guest = || Guest::new(device, thunk, self.scal.as_deref());
            let card = card::attach(thunk, info, ordinal, &self.cache, guest)?;
            return Ok(self.keep(card));
        }
        Ok(self.keep(card::open(thunk, info, ordinal, &self.cache)?))
    }

    /// Takes a card by Synapse.
    fn acquire(&self, info: &CardInfo) -> Result<synapse::Device> {
        let synapse = Synapse::load(self.synapse.as_deref());
        synapse
            .and_then(|synapse| synapse.acquire(info.bus_id.as_str()))
            .map_err(|error| {
                let text = format!("Gaudi card {}: {error}", info.bus_id);
                Error::new(error.kind(), text).with_source(error)
            })
    }

    /// The card that somebody in this process has acquired by Synapse, if anybody has. Takes none, and initialises nothing. May take long the first time.
    /// Errors: it is none of the cards that were found; and what the libraries said.
    pub(super) fn join(&self) -> Result<Option<Arc<OpenCard>>> {
        let known = self.open.0.lock().iter().find_map(|card| {
            let usable = card.is_guest() && card.lost().is_none();
            usable.then(|| Arc::clone(card))
        });
        if known.is_some() {
            return Ok(known);
        }
        let Some(device) = guest::resident(self.synapse.as_deref()) else {
            return Ok(None);
        };
        let thunk = self.load()?;
        let place = guest::place(thunk, &device)?;
        let cards = self.cards()?;
        let at = cards.iter().position(|card| card.bus_id == place);
        let Some((at, ordinal)) = at.and_then(|at| Some((at, u16::try_from(at).ok()?))) else {
            let text = format!(
                "Gaudi card {place} is Synapse's in this process, and none of the cards found ({} hides some)",
                cards::VISIBLE
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        announce_device_runtime();
        let guest = || Guest::new(device, thunk, self.scal.as_deref());
        let card = card::attach(thunk, &cards[at], ordinal, &self.cache, guest)?;
        Ok(Some(self.keep(card)))
    }

    /// Keeps a card open, and gives up those that are lost.
    fn keep(&self, card: Arc<OpenCard>) -> Arc<OpenCard> {
        let mut open = self.open.0.lock();
        let (lost, mut kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *open)
            .into_iter()
            .partition(|card| card.lost().is_some());
        if !kept.iter().any(|other| Arc::ptr_eq(other, &card)) {
            kept.push(Arc::clone(&card));
        }
        *open = kept;
        drop(open);
        drop(lost);
        card
    }

    /// The card whose memory the program allocates, opened if it may be. May take long.
    /// Errors: `InvalidArgument`: no such card; `PermissionDenied`: the program does not let it be opened; and what opening said.
    pub(super) fn to_allocate(&self, ordinal: u16) -> Result<Arc<OpenCard>> {
        let thunk = self.load()?;
        if let Some(card) = card::find(thunk, ordinal) {
            return Ok(card);
        }
        let info = self.info(ordinal)?;
        if let Some(card) = self.join()?
            && card.ordinal() == ordinal
        {
            return Ok(card);
        }
        if self.owning == Owning::AtAllocation {
            let (kind, why) = if info.chip == Chip::Gaudi3 {
                (ErrorKind::Unsupported, "only Synapse copies there")
            } else if guest::is_resident(self.synapse.as_deref()) {
                let why = "Synapse is loaded in this process and may want it";
                (ErrorKind::PermissionDenied, why)
            } else {
                return self.open(ordinal, false);
            };
            let text = format!(
                "Gaudi card {}: {why}; acquire it by Synapse first, or name it by {OWN} or GaudiCopy::own_cards",
                info.bus_id
            );
            return Err(Error::new(kind, text).during(Operation::Memory));
        }
        let by_synapse = match &self.owning {
            Owning::These(choices) => choices
                .iter()
                .any(|choice| choice.is_by_synapse() && self.place(choice).ok() == Some(ordinal)),
            _ => false,
        };
        let may = match &self.owning {
            Owning::AtAllocation | Owning::All => true,
            Owning::None | Owning::Wrong(_) => false,
            Owning::These(choices) => choices
                .iter()
                .any(|choice| self.place(choice).ok() == Some(ordinal)),
        };
        if !may {
            let text = format!(
                "Gaudi card {}: this program does not open it; name it by {OWN} or GaudiCopy::own_cards",
                info.bus_id
            );
            return Err(Error::new(ErrorKind::PermissionDenied, text).during(Operation::Memory));
        }
        self.open(ordinal, by_synapse)
    }

    /// A card that is open already.
    /// Errors: `InvalidArgument`.
    pub(super) fn opened(&self, ordinal: u16) -> Result<Arc<OpenCard>> {
        if let Some(card) = card::find(self.load()?, ordinal) {
            return Ok(card);
        }
        let joined = self.join()?;
        joined.filter(|card| card.ordinal() == ordinal).ok_or_else(|| {
            let text = format!(
                "gaudi:{ordinal} is not open: allocate its memory through wharf, or name it by {OWN} or GaudiCopy::own_cards"
            );
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }
}

/// Cards that are held. Given up on a thread of its own, as closing takes long.
#[derive(Debug, Default)]
struct Open(Mutex<Vec<Arc<OpenCard>>>, Reaper);

impl Drop for Open {
    fn drop(&mut self) {
        for card in self.0.get_mut().drain(..) {
            self.1.drop_later(card);
        }
    }
}
