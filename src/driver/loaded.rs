//! Drivers by their library's file: each loaded once, and kept until the process ends.

use super::library::{Absent, Library, Search};
use crate::{error::Result, util::lock::Mutex};

/// Every `D` that was loaded, one for each library file. Never shrinks; grows with the number of different files.
pub(super) struct Loaded<D: 'static>(Mutex<Vec<One<D>>>);

struct One<D: 'static> {
    /// The name by which the library was found.
    name: String,
    /// The address of a function of it.
    at: usize,
    driver: &'static D,
}

impl<D: 'static> Loaded<D> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The driver that `search` leads to, loaded if it is not. Where nobody named a file, `present` says before whether a look is worth it.
    /// `anchor` is a required function, by which libraries are told apart.
    /// Errors: `Unsupported`: no such library, with all that was tried and the loader's words; and those of `make`.
    pub(super) fn load(
        &self,
        search: &Search<'_>,
        present: impl FnOnce() -> Result<(), Absent>,
        anchor: &str,
        make: impl FnOnce(Library) -> Result<D>,
    ) -> Result<&'static D> {
        let explicit = search.explicit();
        let explicit = explicit.as_deref().map(|path| path.to_string_lossy());
        let known = |one: &&One<D>| match &explicit {
            Some(name) => one.name == *name,
            None => search.names.contains(&one.name.as_str()),
        };
        if let Some(one) = self.0.lock().iter().find(known) {
            return Ok(one.driver);
        }
        if explicit.is_none() {
            present()?;
        }
        self.of(search.open()?, anchor, make)
    }

    /// The driver that `search` leads to if this process has its library already, whoever loaded it. Loads nothing.
    pub(super) fn resident(
        &self,
        search: &Search<'_>,
        anchor: &str,
        make: impl FnOnce(Library) -> Result<D>,
    ) -> Option<&'static D> {
        self.of(search.resident()?, anchor, make).ok()
    }

    /// The driver in a library, made of it if it is new. Another name for a library that is known leads to the same functions.
    fn of(
        &self,
        library: Library,
        anchor: &str,
        make: impl FnOnce(Library) -> Result<D>,
    ) -> Result<&'static D> {
        let at = library.find(anchor).map_or(0, |at| at.addr().get());
        let same = |one: &&One<D>| at != 0 && one.at == at;
        if let Some(one) = self.0.lock().iter().find(same) {
            return Ok(one.driver);
        }
        let name = library.name().to_owned();
        // May call the library, so without the lock: another thread may have made one meanwhile.
        let made = make(library)?;
        let mut all = self.0.lock();
        if let Some(one) = all.iter().find(same) {
            return Ok(one.driver);
        }
        let driver: &'static D = Box::leak(Box::new(made));
        all.push(One { name, at, driver });
        Ok(driver)
    }
}
