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

use stage::{Outcome, Outcome::*, Stage, Stop};
use wharf::memory::MonitorKind;

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
    change: fn(&Stage) -> Result<(), Stop>,
    cells: [Cell; MONITORS.len()],
}

#[derive(Clone, Copy)]
enum Cell {
    /// On every machine.
    Is(Outcome),
    /// The first from this version of Linux on, the second before.
    Since(u32, u32, Outcome, Outcome),
}

const fn row(
    name: &'static str,
    change: fn(&Stage) -> Result<(), Stop>,
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
    row("mremap_onto",             mappings::mremap_onto,          [A,           B,    M,    B,       M]),
    row("mremap_move",             mappings::mremap_move,          [A,           B,    M,    B,       M]),
    row("mremap_dontunmap",        mappings::mremap_dontunmap,     [A,           B,    M,    B,       M]),
    row("mremap_shrink",           mappings::mremap_shrink,        [A,           B,    M,    B,       M]),
    row("madvise_dontneed",        mappings::madvise_dontneed,     [A,           B,    M,    B,       M]),
    row("madvise_free",            mappings::madvise_free,         [A,           B,    M,    B,       M]),
    row("madvise_remove",          mappings::madvise_remove,       [A,           B,    M,    B,       M]),
    row("madvise_guard_install",   mappings::madvise_guard_install,[M,           B,    M,    B,       M]),
    row("process_madvise",         mappings::process_madvise,      [A,           M,    M,    M,       M]),
    row("io_uring_madvise",        mappings::io_uring_madvise,     [A,           M,    M,    M,       M]),
    row("huge_page_unmapped",      mappings::huge_page_unmapped,   [A,           B,    M,    B,       M]),
    row("munmap_in_forked_child",  mappings::munmap_in_forked_child,[M,           M,    M,    M,       M]),
    row("brk_shrink",              heap::brk_shrink,               [A,           B,    M,    B,       M]),
    row("malloc_trim_end",         heap::malloc_trim_end,          [A,           B,    M,    B,       M]),
    row("malloc_trim_middle",      heap::malloc_trim_middle,       [A,           B,    M,    B,       M]),
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

macro_rules! columns {
    ($($test:ident: $kind:expr;)+) => {
        $(#[test]
        fn $test() {
            column(this_test!(), $kind);
        })+
        const COLUMNS: [MonitorKind; MONITORS.len()] = [$($kind),+];
    };
}

columns! {
    uffd: MonitorKind::Uffd;
    hooks: MonitorKind::Hooks;
    alloc: MonitorKind::Alloc;
    imported: MonitorKind::Imported;
    none: MonitorKind::None;
}

#[test]
fn every_column_has_its_test() {
    assert_eq!(COLUMNS, MONITORS);
}

/// All cells of a monitor: the test, and the processes that it starts.
fn column(test: &str, kind: MonitorKind) {
    for row in TABLE {
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
    for row in TABLE {
        let variables: &[_] = match row.name {
            "malloc_trim_end" => &[("MALLOC_ARENA_MAX", "1")],
            _ => &[],
        };
        let mut process = Child::start(test, row.name, variables);
        let line = runtime.block_on(process.hear());
        process.finish();
        let (word, why) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "refused" if why.contains("did not tell") => panic!("the self-test: {why}"),
            "refused" => return eprintln!("not run: no monitor {kind} here: {why}"),
            "cannot" => {
                eprintln!("not run: {kind}, {}: {why}", row.name);
                continue;
            }
            _ => {}
        }
        let expected = match row.cells[index] {
            Cell::Is(outcome) => outcome,
            Cell::Since(major, minor, since, before) => match stage::kernel() >= (major, minor) {
                true => since,
                false => before,
            },
        };
        if format!("{expected:?}") != word {
            wrong.push(format!("{}: expected {expected:?}, found {line}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{kind}: {wrong:#?}");
}

/// In the process of the cell.
fn cell(parent: &Parent, kind: MonitorKind, row: &Row) {
    if let Err(why) = prepare(kind) {
        return parent.say(format_args!("refused {why}"));
    }
    let stage = match Stage::new(kind) {
        Ok(stage) => stage,
        Err(error) => return parent.say(format_args!("refused {error}")),
    };
    match (row.change)(&stage) {
        Ok(()) => parent.say(format_args!("{:?}", stage.outcome())),
        Err(Stop::Unsupported(error)) => parent.say(format_args!("{Unsupported:?} {error}")),
        Err(Stop::CannotRun(why)) => parent.say(format_args!("cannot {why}")),
    }
}
