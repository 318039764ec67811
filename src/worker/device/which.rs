//! Which accelerator is for which memory.

use crate::{
    Context,
    error::{Error, ErrorKind, Result},
    types::MemoryType,
};

/// The place of the accelerator that serves all of these types.
pub(in crate::worker) fn find(context: &Context, types: &[MemoryType]) -> Result<usize> {
    let serves = |index: &usize| {
        let accelerator = &context.accelerators()[*index];
        types
            .iter()
            .all(|memory_type| accelerator.serves(*memory_type))
    };
    let found = (0..context.accelerators().len()).find(serves);
    found.ok_or_else(|| {
        let names: Vec<_> = types.iter().map(MemoryType::to_string).collect();
        let mut text = format!("no path here moves memory of type {}", names.join(" with "));
        if context.accelerators().is_empty() {
            text += ": no accelerator is in use";
        }
        Error::new(ErrorKind::Unsupported, text)
    })
}
