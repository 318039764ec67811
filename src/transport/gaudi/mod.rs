//! `gaudi_copy`: memory of Intel's Gaudi cards, and copies between it and the host's (`gaudi_cpy`).
//!
//! Every context has it, where `libhl-thunk.so` is found when it is first wanted: `Context::allocate_on(MemoryType::Gaudi(0), bytes)`, and [foreign](crate::Buffer::foreign)
//! memory of such devices. [`GaudiCopy`] says which library and what of it is used:
//!
//! ```
//! use std::sync::Arc;
//! use wharf::{Context, ErrorKind, MemoryType, transport::gaudi::GaudiCopy};
//!
//! # async fn run() -> wharf::Result<()> {
//! let devices = GaudiCopy::with_library("/opt/driver/libhl-thunk.so").ipc(false);
//! let context = Context::builder().accelerator(Arc::new(devices)).build()?;
//! // Nothing is loaded until memory is asked for.
//! let error = context.allocate_on(MemoryType::Gaudi(0), 1 << 20).await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Unsupported);
//! assert!(error.to_string().contains("/opt/driver/libhl-thunk.so"));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # Whose a card is
//! One process at a time has a card. So wharf opens none for being asked what there is: it looks at the control nodes. A card is opened
//! * when the program first allocates memory on it (`Context::allocate_on` with `MemoryType::Gaudi`), or
//! * at the start, when the context is built, for the cards that [`GaudiCopy::own_cards`] or `WHARF_GAUDI_OWN` name; then a card that cannot be had
//!   is an error of the context's build, not of a transfer.
//!
//! A card that Synapse has in this process, because the program (PyTorch, say) acquired it, is used by Synapse, with all device memory that anybody in the process
//! allocated on it; wharf neither acquires nor releases it. Gaudi 3 is copied to by Synapse alone: acquired by the program, or here when the program names it.
//! Host memory that the program itself has mapped by `synHostMap` is not to be given to wharf by the same whole pages as long as it is: runtimes (that of 2024) answer
//! a second mapping of one range with success and make none, and the first to unmap it takes it from both.
//!
//! It is open once in the process, whichever contexts use it, and given back when the last of them, of the buffers and of the workers is gone.
//! Opening ends with a copy to the card, within it and back.
//!
//! # What a copy costs
//! Host memory in the registration cache: one submission; for up to 64 KiB at most four looks at it, then the card's own thread waits for it, with one
//! call for all that is under way. Memory that the cache does not have is mapped before, by a thread that may block: once, whatever the length.
//! Without copies no call is made at all.
//!
//! # Where it falls back
//! * Host memory that cannot be pinned for writing (constants, some files): staged, by a thread.
//! * Between two cards: staged as well, unless the driver lets one reach the other (`peers`).
//! * No notifier: a reset is noticed by the next call.
//!
//! # When a card is lost
//! A reset, an engine that failed or a submission that timed out end the card: it is closed at once, so that the kernel does not kill the process, and with it
//! the dma-bufs of its memory; then each copy under way on it is reported as `DeviceLost`, and copies that name its memory are refused. Other cards go on. The
//! next allocation opens it anew, once the kernel has it in operation again, for all workers and contexts of the process; until then it is refused (`WouldBlock`). Memory of before
//! stays lost: its addresses are never given out again. (The first Gaudi's are the hardware's own: there a worker that has lost the card does not use it again.)

// Comes in: what an [`Accelerator`] is asked for. Goes out: its [`MemoryDomain`], and a [`CopyEngine`] for each worker. Uses `driver/hlthunk`, `memory`,
// `sys`. Tests: `tests/gaudi/`, on the emulated library, as a program would use it.
//
// | file | holds |
// |---|---|
// | `options` | its name, and what a program chooses |
// | `shared` | the library, the cards there are, which of them are opened |
// | `cards`, `mapping` | which cards there are, and their numbers |
// | `card` | a card that is open: one in the process |
// | `backend` | what carries out copies on a card, whoever has it open |
// | `own` | that for a card which this process opened: command submissions |
// | `guest` | that for a card which Synapse has in this process |
// | `completer` | the thread that waits for a card's copies, and for its end |
// | `heap` | allocations in the card's huge pages |
// | `host` | host memory in reach of cards |
// | `domain` | whose memory it is; export |
// | `vendor` | what the engine that all vendors share is given |
// | `home` | a card as one engine uses it |
// | `staged` | copies that no engine makes alone |
// | `peers` | what a card reaches of other cards |
// | `window` | a part of that, open |
// | `ipc` | `gaudi_ipc`: memory of other processes of the host |
// | `paths` | how bytes go between two places |

mod backend;
mod card;
mod cards;
mod completer;
mod domain;
mod guest;
mod heap;
mod home;
mod host;
mod ipc;
mod mapping;
mod options;
mod own;
mod paths;
mod peers;
mod shared;
mod staged;
mod vendor;
mod window;

use std::{path::PathBuf, sync::Arc};

use super::accelerator::{
    Accelerator, CopyEngine, Engine, Export, Import, ImportedMemory, ipc::lazy::LazyIpc,
};
use options::{Options, Owning};

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{MemoryDomain, MonitorKind, RegistrationCacheOptions},
    transport::DeviceInfo,
    types::{Identity, MemoryType},
};

pub use cards::GaudiCard;
pub use paths::GaudiPath;

/// Gaudi cards, by the library of this machine.
#[derive(Clone, Debug)]
pub struct GaudiCopy {
    options: Options,
    shared: Arc<shared::Shared>,
    ipc: LazyIpc<ipc::GaudiSharing>,
}

impl GaudiCopy {
    /// With the library in the file that `WHARF_LIBHLTHUNK` names, else in `libhl-thunk.so`, and the cards that `WHARF_GAUDI_OWN` names. Loads nothing.
    #[must_use]
    pub fn new() -> Self {
        let owning = std::env::var(options::OWN).unwrap_or_default();
        Self::of(Options::new(None, Owning::parse(&owning)))
    }

    /// With the library in this file, and cards opened by the first allocation. Loads nothing.
    #[must_use]
    pub fn with_library(path: impl Into<PathBuf>) -> Self {
        Self::of(Options::new(Some(path.into()), Owning::default()))
    }

    /// With Synapse in this file, else the one that the process has loaded, that `WHARF_LIBSYNAPSE` names, or `libSynapse.so`. It is loaded for a card that it is to
    /// acquire, else used where the process has it.
    #[must_use]
    pub fn synapse(self, path: impl Into<PathBuf>) -> Self {
        let synapse = Some(path.into());
        Self::of(Options {
            synapse,
            ..self.options
        })
    }

    /// With SCAL in this file, else the one that `WHARF_LIBSCAL` names, or `libscal.so`. It is never loaded here: Synapse brings it.
    #[must_use]
    pub fn scal(self, path: impl Into<PathBuf>) -> Self {
        let scal = Some(path.into());
        Self::of(Options {
            scal,
            ..self.options
        })
    }

    /// Whether memory of cards is offered as dma-bufs to who asks for it, network transports as a rule (`gaudi_gdr`). It is, unless this says otherwise.
    #[must_use]
    pub fn gdr(self, yes: bool) -> Self {
        Self::of(Options {
            exports: yes,
            ..self.options
        })
    }

    /// Whether memory is exported to other processes and imported from them (`gaudi_ipc`); without, it is staged. It is, unless this says otherwise.
    #[must_use]
    pub fn ipc(self, yes: bool) -> Self {
        Self::of(Options {
            ipc: yes,
            ..self.options
        })
    }

    /// Which cards this process opens, in the words of `WHARF_GAUDI_OWN`:
    ///
    /// | `cards` | opened |
    /// |---|---|
    /// | empty, `auto` | a card whose memory is allocated, then; none that Synapse may want: Gaudi 3, and any in a process that has Synapse loaded |
    /// | `none` | none |
    /// | `all` | all, when the context is built |
    /// | PCI places, `module:N` and numbers, with commas between | these, when the context is built; no others |
    /// | one of these after `synapse:` | this one, acquired by Synapse, of which a process has one card |
    ///
    /// Gaudi 3 is acquired by Synapse in any case. A card that Synapse has in this process is used without a choice. What is none of these is an error of
    /// [`Accelerator::probe`].
    #[must_use]
    pub fn own_cards(self, cards: &str) -> Self {
        Self::of(Options {
            owning: Owning::parse(cards),
            ..self.options
        })
    }

    /// Which cards are used: those in these places of the server (modules), and no others. Without, `HABANA_VISIBLE_MODULES` says so. A module without a card is
    /// an error of [`Accelerator::probe`].
    #[must_use]
    pub fn modules(self, modules: impl IntoIterator<Item = u32>) -> Self {
        Self::of(Options {
            modules: Some(modules.into_iter().collect()),
            ..self.options
        })
    }

    /// The numbers of the cards, those of `MemoryType::Gaudi`: the card at the first of these PCI places, such as `0000:33:00.0`, is number 0, and so on; cards
    /// that are not named come after them. Without, `GAUDI_MAPPING_TABLE` says so. What is no place, or has no card, is an error of [`Accelerator::probe`].
    #[must_use]
    pub fn numbered(self, places: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::of(Options {
            numbers: Some(places.into_iter().map(Into::into).collect()),
            ..self.options
        })
    }

    /// The cards of this machine, by number. Opens none: looks at their control nodes, once; may take milliseconds.
    ///
    /// # Errors
    /// `Unsupported`: no library, one of 2021, or no card; `Configuration`: what [`numbered`](Self::numbered) and [`modules`](Self::modules) were given, or the variables in
    /// their place, does not fit them.
    pub fn cards(&self) -> Result<Vec<GaudiCard>> {
        let cards = self.shared.cards()?.iter().enumerate();
        Ok(cards
            .map(|(number, info)| GaudiCard::new(number, info))
            .collect())
    }

    /// The card in a place of the server, which stays when the machine restarts.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none; and those of [`GaudiCopy::cards`].
    pub fn card_by_module(&self, module_id: u32) -> Result<GaudiCard> {
        self.card(&format!("module {module_id}"), |card| {
            card.module_id() == module_id
        })
    }

    /// The card at a PCI place, as in `0000:33:00.0` or `33:00.0`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none, or this is no place; and those of [`GaudiCopy::cards`].
    pub fn card_by_pci(&self, place: &str) -> Result<GaudiCard> {
        let bus_id: crate::driver::hlthunk::BusId = place.parse()?;
        self.card(place, |card| card.pci() == bus_id.as_str())
    }

    fn card(&self, what: &str, is: impl Fn(&GaudiCard) -> bool) -> Result<GaudiCard> {
        let cards = self.cards()?;
        let known: Vec<String> = cards
            .iter()
            .map(|card| format!("{} (module {})", card.pci(), card.module_id()))
            .collect();
        cards.into_iter().find(is).ok_or_else(|| {
            let text = format!("no Gaudi card is {what}; there are {}", known.join(", "));
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// Uses the card that this process has acquired by Synapse, and says which it is. To be called by a program that acquired it after the context was built; else
    /// wharf notices by itself. Acquires none. May take milliseconds.
    ///
    /// # Errors
    /// What Synapse said.
    pub fn join_synapse(&self) -> Result<Option<MemoryType>> {
        let card = self.shared.join()?;
        Ok(card.map(|card| MemoryType::Gaudi(card.ordinal())))
    }

    /// How bytes go from memory to memory, each of a card or the host's. What one learns only by a try (whether the driver lets cards reach each other) is known after
    /// the first copy of 4 MiB between two cards. Opens no card.
    ///
    /// # Errors
    /// `InvalidArgument`: no such card, or two memories of the host; and those of [`GaudiCopy::cards`].
    pub fn path(&self, from: MemoryType, to: MemoryType) -> Result<GaudiPath> {
        paths::path(&self.shared, from, to)
    }

    fn of(options: Options) -> Self {
        let mut ipc = LazyIpc::new("gaudi_ipc");
        ipc.choose(options.ipc);
        Self {
            shared: Arc::new(shared::Shared::new(options.clone())),
            ipc,
            options,
        }
    }
}

impl Default for GaudiCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accelerator for GaudiCopy {
    fn name(&self) -> &'static str {
        options::NAME
    }

    fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        self.shared.cache.set(options, monitor);
    }

    /// Looks at the control nodes; opens the cards that the program chose to have from the start.
    fn probe(&self) -> Result<()> {
        self.shared.open_owned()
    }

    /// Cards that were named are to be open from the start.
    fn is_demanded(&self) -> bool {
        self.shared.is_demanded()
    }

    /// Opens none.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let info = |card: &GaudiCard| {
            let info = DeviceInfo {
                memory_type: Some(card.memory_type()),
                unused: (!card.is_operational())
                    .then(|| "it is in reset, or an administrator must reset it".to_owned()),
                ..DeviceInfo::new(card.name())
            };
            info.at(card.pci().to_owned())
                .detail("generation", card.generation())
                .detail("module", card.module_id())
                .detail("memory", format_args!("{} bytes", card.memory()))
        };
        Ok(self.cards()?.iter().map(info).collect())
    }

    fn parts(&self) -> Vec<(&'static str, Result<String>)> {
        let gdr = match self.options.exports {
            true => Ok("memory is offered as dma-bufs to network devices".to_owned()),
            false => Err(Error::new(
                ErrorKind::Unsupported,
                "left out by the program or the configuration",
            )),
        };
        vec![self.ipc.part(), ("gaudi_gdr", gdr)]
    }

    fn domain(&self) -> Arc<dyn MemoryDomain> {
        Arc::new(domain::GaudiDomain(Arc::clone(&self.shared)))
    }

    fn serves(&self, memory_type: MemoryType) -> bool {
        matches!(memory_type, MemoryType::Gaudi(_))
    }

    fn open(&self) -> Result<Box<dyn CopyEngine>> {
        let vendor = vendor::GaudiVendor(Arc::clone(&self.shared));
        Ok(Box::new(Engine::open(Arc::new(vendor))?))
    }

    fn export(&self, address: u64, length: u64) -> Result<Export> {
        let make = || Ok(ipc::GaudiSharing(Arc::clone(&self.shared)));
        self.ipc.export(address, length, make)
    }

    fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.ipc.exported(address, length)
    }

    /// Opens no card for it: one that is open here reaches the other's memory, or none does.
    fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        if let Some(error) = ipc::cannot_open(&self.shared) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let shared = Arc::clone(&self.shared);
        let start = move || Ok(ipc::GaudiSharing(shared));
        self.ipc.import(descriptor, peer, true, start)
    }

    fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        self.ipc.imported(descriptor, peer)
    }
}

/// Gives bytes to the decoder of exported memory.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    ipc::fuzz(bytes);
}
