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

use crate::support::{Child, Parent, child, this_test};

/// The columns. A new one gets a cell in every row, and a test by `columns!`.
const MONITORS: [MonitorKind; 2] = [MonitorKind::Uffd, MonitorKind::None];

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
const M: Cell = Cell::Is(Missed);
const U: Cell = Cell::Is(Unsupported);
/// Any kind of mapping can be watched where the kernel says what is mapped where (`PROCMAP_QUERY`).
const ANY_MAPPING: Cell = Cell::Since(6, 11, After, Unsupported);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //                                                              uffd         none
    row("vec_dropped",             heap::vec_dropped,              [A,           M]),
    row("vec_grown",               heap::vec_grown,                [A,           M]),
    row("vec_shrunk",              heap::vec_shrunk,               [A,           M]),
    row("munmap",                  mappings::munmap,               [A,           M]),
    row("munmap_part",             mappings::munmap_part,          [A,           M]),
    row("munmap_direct",           mappings::munmap_direct,        [A,           M]),
    row("munmap_other_thread",     mappings::munmap_other_thread,  [A,           M]),
    row("mmap_fixed_over",         mappings::mmap_fixed_over,      [A,           M]),
    row("mremap_onto",             mappings::mremap_onto,          [A,           M]),
    row("mremap_move",             mappings::mremap_move,          [A,           M]),
    row("mremap_dontunmap",        mappings::mremap_dontunmap,     [A,           M]),
    row("mremap_shrink",           mappings::mremap_shrink,        [A,           M]),
    row("madvise_dontneed",        mappings::madvise_dontneed,     [A,           M]),
    row("madvise_free",            mappings::madvise_free,         [A,           M]),
    row("madvise_remove",          mappings::madvise_remove,       [A,           M]),
    row("madvise_guard_install",   mappings::madvise_guard_install,[M,           M]),
    row("process_madvise",         mappings::process_madvise,      [A,           M]),
    row("io_uring_madvise",        mappings::io_uring_madvise,     [A,           M]),
    row("huge_page_unmapped",      mappings::huge_page_unmapped,   [A,           M]),
    row("munmap_in_forked_child",  mappings::munmap_in_forked_child,[M,          M]),
    row("brk_shrink",              heap::brk_shrink,               [A,           M]),
    row("malloc_trim_end",         heap::malloc_trim_end,          [A,           M]),
    row("malloc_trim_middle",      heap::malloc_trim_middle,       [A,           M]),
    row("thread_arena_shrink",     heap::thread_arena_shrink,      [A,           M]),
    row("thread_stack",            heap::thread_stack,             [A,           M]),
    row("dlclose",                 shared::dlclose,                [ANY_MAPPING, M]),
    row("private_file",            shared::private_file,           [ANY_MAPPING, M]),
    row("memfd_unmapped",          shared::memfd_unmapped,         [A,           M]),
    row("memfd_truncated",         shared::memfd_truncated,        [M,           M]),
    row("memfd_hole_punched",      shared::memfd_hole_punched,     [M,           M]),
    row("shmdt",                   shared::shmdt,                  [U,           M]),
    row("shmat_remap_over_sysv",   shared::shmat_remap_over_sysv,  [U,           M]),
    row("shmat_remap_over",        shared::shmat_remap_over,       [M,           M]),
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
            "refused" => return println!("not run: no monitor {kind} here: {why}"),
            "cannot" => {
                println!("not run: {kind}, {}: {why}", row.name);
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
