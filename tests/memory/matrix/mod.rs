//! Which monitor sees which change of memory, as a table. A cell that gets better or worse fails its test.
//!
//! Each cell is a process of its own: the scenario watches some memory, changes it, and looks whether the event came, and when.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the table; a column is a monitor, and a test |
//! | `stage` | what a scenario has: memory that is watched, and what was seen |
//! | `mappings`, `heap`, `shared` | the scenarios, by what they change |

mod heap;
mod mappings;
mod shared;
mod stage;

use stage::{Outcome, Outcome::*, Stage};
use wharf::{ErrorKind, Result, memory::MonitorKind};

use crate::{
    prepare::prepare,
    support::{Child, Parent, child, this_test},
};

/// The columns. A new one gets a cell in every row, and a test by `columns!`.
const MONITORS: [MonitorKind; 5] = [
    MonitorKind::Uffd,
    MonitorKind::Hooks,
    MonitorKind::Alloc,
    MonitorKind::Imported,
    MonitorKind::None,
];

/// A change of memory, and what each monitor makes of it.
struct Row {
    name: &'static str,
    change: fn(&Stage) -> Result<()>,
    cells: [Cell; MONITORS.len()],
}

#[derive(Clone, Copy)]
enum Cell {
    /// On every machine.
    Is(Outcome),
    /// The first from this version of Linux on, the second before.
    Since(u32, u32, Outcome, Outcome),
    /// One or the other, as the version of a foreign patch has it.
    Either(Outcome, Outcome),
}

const fn row(
    name: &'static str,
    change: fn(&Stage) -> Result<()>,
    cells: [Cell; MONITORS.len()],
) -> Row {
    Row {
        name,
        change,
        cells,
    }
}

const A: Cell = Cell::Is(After);
const B: Cell = Cell::Is(Before);
const M: Cell = Cell::Is(Missed);
const U: Cell = Cell::Is(Unsupported);
/// Any kind of mapping can be watched where the kernel says what is mapped where (`PROCMAP_QUERY`).
const ANY_MAPPING: Cell = Cell::Since(6, 11, After, Unsupported);
/// UCX 1.13 loses the address that `mremap` is to move to.
const UCX: Cell = Cell::Either(Before, Misplaced);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //                                                              uffd         hooks alloc imported none
    row("vec_dropped",             heap::vec_dropped,              [A,           B,    B,    B,       M]),
    row("vec_grown",               heap::vec_grown,                [A,           B,    B,    B,       M]),
    row("vec_shrunk",              heap::vec_shrunk,               [A,           B,    B,    B,       M]),
    row("munmap",                  mappings::munmap,               [A,           B,    M,    B,       M]),
    row("munmap_part",             mappings::munmap_part,          [A,           B,    M,    B,       M]),
    row("munmap_direct",           mappings::munmap_direct,        [A,           M,    M,    M,       M]),
    row("munmap_other_thread",     mappings::munmap_other_thread,  [A,           B,    M,    B,       M]),
    row("mmap_fixed_over",         mappings::mmap_fixed_over,      [A,           B,    M,    B,       M]),
    row("mremap_onto",             mappings::mremap_onto,          [A,           B,    M,    UCX,     M]),
    row("mremap_move",             mappings::mremap_move,          [A,           B,    M,    UCX,     M]),
    row("mremap_dontunmap",        mappings::mremap_dontunmap,     [A,           B,    M,    B,       M]),
    row("mremap_shrink",           mappings::mremap_shrink,        [A,           B,    M,    B,       M]),
    row("madvise_dontneed",        mappings::madvise_dontneed,     [A,           B,    M,    B,       M]),
    row("madvise_free",            mappings::madvise_free,         [A,           B,    M,    B,       M]),
    row("madvise_remove",          mappings::madvise_remove,       [A,           B,    M,    B,       M]),
    row("munmap_in_forked_child",  mappings::munmap_in_forked_child,[M,           M,    M,    M,       M]),
    row("brk_shrink",              heap::brk_shrink,               [A,           B,    M,    B,       M]),
    #[cfg(target_env = "gnu")]
    row("malloc_trim_end",         heap::malloc_trim_end,          [A,           B,    M,    B,       M]),
    #[cfg(target_env = "gnu")]
    row("malloc_trim_middle",      heap::malloc_trim_middle,       [A,           B,    M,    B,       M]),
    #[cfg(target_env = "gnu")]
    row("thread_arena_shrink",     heap::thread_arena_shrink,      [A,           B,    M,    B,       M]),
    row("thread_stack",            heap::thread_stack,             [A,           B,    M,    B,       M]),
    row("dlclose",                 shared::dlclose,                [ANY_MAPPING, M,    U,    M,       M]),
    row("private_file",            shared::private_file,           [ANY_MAPPING, B,    M,    B,       M]),
    row("memfd_unmapped",          shared::memfd_unmapped,         [A,           B,    M,    B,       M]),
    row("memfd_truncated",         shared::memfd_truncated,        [M,           M,    M,    M,       M]),
    row("memfd_hole_punched",      shared::memfd_hole_punched,     [M,           M,    M,    M,       M]),
    row("pages_remapped",          shared::pages_remapped,         [M,           M,    M,    M,       M]),
    row("shmdt",                   shared::shmdt,                  [U,           B,    M,    B,       M]),
    row("shmat_remap_over_sysv",   shared::shmat_remap_over_sysv,  [U,           B,    M,    B,       M]),
    row("shmat_remap_over",        shared::shmat_remap_over,       [M,           B,    M,    B,       M]),
];

/// Changes that not every kernel makes, or not for every process.
#[rustfmt::skip]
const SELDOM: &[Row] = &[
    row("madvise_guard_install",   mappings::madvise_guard_install,[M,           B,    M,    B,       M]),
    row("process_madvise",         mappings::process_madvise,      [A,           M,    M,    M,       M]),
    row("io_uring_madvise",        mappings::io_uring_madvise,     [A,           M,    M,    M,       M]),
    row("huge_page_unmapped",      mappings::huge_page_unmapped,   [A,           B,    M,    B,       M]),
];

macro_rules! columns {
    ($($test:ident: $kind:expr, $(#[$attribute:meta])?;)+) => {
        $(mod $test {
            use super::*;

            #[test]
            $(#[$attribute])?
            fn on_any_kernel() {
                column(this_test!(), $kind, TABLE);
            }

            #[test]
            #[ignore = "needs the monitor, io_uring, transparent huge pages, and Linux 6.13"]
            fn seldom() {
                column(this_test!(), $kind, SELDOM);
            }
        })+
        const COLUMNS: [MonitorKind; MONITORS.len()] = [$($kind),+];
    };
}

columns! {
    uffd: MonitorKind::Uffd, #[ignore = "needs userfaultfd: a container may refuse it"];
    hooks: MonitorKind::Hooks,
        #[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")];
    alloc: MonitorKind::Alloc,;
    imported: MonitorKind::Imported, #[ignore = "needs UCX: libucm.so.0"];
    none: MonitorKind::None,;
}

#[test]
fn every_column_has_its_test() {
    assert_eq!(COLUMNS, MONITORS);
}

/// All cells of a monitor: the test, and the processes that it starts.
fn column(test: &str, kind: MonitorKind, table: &[Row]) {
    for row in table {
        if let Some(parent) = child(row.name) {
            return cell(&parent, kind, row);
        }
    }
    let index = MONITORS
        .iter()
        .position(|other| *other == kind)
        .expect("a column");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let mut wrong = Vec::new();
    for row in table {
        let variables: &[_] = match row.name {
            "malloc_trim_end" => &[("MALLOC_ARENA_MAX", "1")],
            _ => &[],
        };
        let mut process = Child::start(test, row.name, variables);
        let line = runtime.block_on(process.hear());
        process.finish();
        let word = line.split(' ').next().expect("a word");
        let expected: &[_] = match row.cells[index] {
            Cell::Is(outcome) => &[outcome],
            Cell::Either(one, other) => &[one, other],
            Cell::Since(major, minor, since, before) => match stage::kernel() >= (major, minor) {
                true => &[since],
                false => &[before],
            },
        };
        if !expected
            .iter()
            .any(|outcome| format!("{outcome:?}") == word)
        {
            wrong.push(format!("{}: expected {expected:?}, found {line}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{kind}: {wrong:#?}");
}

/// In the process of the cell.
fn cell(parent: &Parent, kind: MonitorKind, row: &Row) {
    prepare(kind).expect("what the monitor needs");
    let stage = Stage::new(kind).expect("a monitor");
    match (row.change)(&stage) {
        Ok(()) => parent.say(format_args!("{:?}", stage.outcome())),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            parent.say(format_args!("{Unsupported:?} {error}"));
        }
        Err(error) => parent.say(format_args!("{Misplaced:?} {error}")),
    }
}
