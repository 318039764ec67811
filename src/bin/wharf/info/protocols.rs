//! How operations go between two memories, by size: what [`Endpoint::explain`] says of a connection that is made for it, between two workers of
//! this process.

use serde_json::{Value, json};
use wharf::{Context, Endpoint, Explanation, MemoryType, Operation, Worker, transport::Reach};

use crate::Failure;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Memory that the bytes are in: `host`, `host-pinned`, `cuda`, `cuda:1`, `cuda-managed`, `rocm`, `gaudi`, ...
    #[arg(long, default_value = "host")]
    from: MemoryType,

    /// Memory that they go to.
    #[arg(long, default_value = "host")]
    to: MemoryType,

    /// The transport between the peers (`self`, `shm`, `rc_verbs`, `tcp`); without it the best that works here, for two peers on this host.
    #[arg(long)]
    over: Option<String>,

    /// Only this operation: `tag_send`, `am_send`, `put`, `get`, `stream`, `atomic`, `signal`, or `copy` (within a process).
    #[arg(long, value_parser = operation)]
    operation: Option<(&'static str, Operation)>,
}

const OPERATIONS: [(&str, Operation); 8] = [
    ("tag_send", Operation::TagSend),
    ("am_send", Operation::AmSend),
    ("put", Operation::Put),
    ("get", Operation::Get),
    ("stream", Operation::Stream),
    ("atomic", Operation::Atomic),
    ("signal", Operation::Signal),
    ("copy", Operation::Copy),
];

/// The longest length that is asked about.
const LONGEST: usize = 1 << 40;

fn operation(text: &str) -> Result<(&'static str, Operation), String> {
    let mut known = OPERATIONS.into_iter();
    known.find(|(name, _)| *name == text).ok_or_else(|| {
        let names: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// The table.
pub(super) fn table(args: &Args) -> Result<Value, Failure> {
    crate::runtime()?.block_on(ask(args))
}

async fn ask(args: &Args) -> Result<Value, Failure> {
    let context = context(args)?;
    let types = [args.from, args.to];
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    // Within a worker the peer is the worker itself.
    let own = args.over.as_deref() == Some("self");
    let peer = if own { &here } else { &there };
    let endpoint = here.connect(&peer.address()?).await?;
    let used = endpoint.transports();
    if let Some(over) = &args.over
        && !used.contains(&over.as_str())
    {
        return Err(format!(
            "the peers are connected over {}, not over {over}",
            used.join(" and ")
        )
        .into());
    }
    // What a device's engine does is known once it is open.
    let mut notes = Vec::new();
    for memory_type in types {
        if !memory_type.is_host_accessible()
            && let Err(error) = open(&context, &here, memory_type).await
        {
            notes.push(format!("{memory_type}: {}", crate::chain(&*error)));
        }
    }
    let operations: Vec<Value> = OPERATIONS
        .into_iter()
        .filter(|(name, _)| args.operation.is_none_or(|(only, _)| only == *name))
        .map(|(name, operation)| {
            let ranges = ranges(&endpoint, operation, types);
            json!({ "operation": name, "ranges": ranges })
        })
        .collect();
    Ok(json!({
        "from": args.from.to_string(),
        "to": args.to.to_string(),
        "transports": used,
        "operations": operations,
        "notes": notes,
    }))
}

/// A context with this transport, and whatever devices there are.
fn context(args: &Args) -> Result<Context, Failure> {
    let Some(over) = &args.over else {
        return Ok(Context::builder().build()?);
    };
    let all = Context::builder().build()?;
    let report = all.report();
    let known = report.transports.iter().find(|one| one.name == *over);
    // What can carry messages; a name that nobody knows is refused by the builder, which knows the nearest.
    if let Some(known) = known {
        if let wharf::TransportState::Unavailable(why) | wharf::TransportState::LeftOut(why) =
            &known.state
        {
            return Err(format!("{over} cannot be used: {why}").into());
        }
        match known.reach {
            Some(Reach::Worker | Reach::Network) => {}
            Some(Reach::Host) if over != "cma" => {}
            _ => return Err(format!("{over} carries no messages between peers").into()),
        }
    }
    let mut names = vec![over.as_str()];
    if over == "shm" {
        names.push("cma");
    }
    // Device copies happen at the ends, whatever is between.
    let ends = report
        .transports
        .iter()
        .filter(|one| one.state == wharf::TransportState::Usable);
    let ends = ends.filter(|one| one.reach.is_none());
    names.extend(ends.map(|one| one.name.as_str()));
    Ok(Context::builder().transports(&names.join(","))?.build()?)
}

/// Has the engine for this memory opened, by a small copy.
async fn open(context: &Context, worker: &Worker, memory_type: MemoryType) -> Result<(), Failure> {
    let memory = context.allocate_on(memory_type, 4096).await?;
    worker.copy(vec![0; 4096], memory).await?;
    Ok(())
}

/// The ways of an operation: each with the lengths that take it, from the first to the last.
fn ranges(endpoint: &Endpoint, operation: Operation, [from, to]: [MemoryType; 2]) -> Vec<Value> {
    let ask = |length: usize| endpoint.explain(operation, from, to, length);
    let mut ranges = Vec::new();
    let mut begin = 0;
    let mut way = ask(0);
    let mut below = 0;
    let mut length = 1;
    while length <= LONGEST {
        if ask(length) == way {
            below = length;
            length *= 2;
            continue;
        }
        // The first length of another way: between what is the same and what is not.
        let (mut same, mut other) = (below, length);
        while other - same > 1 {
            let middle = same + (other - same) / 2;
            match ask(middle) == way {
                true => same = middle,
                false => other = middle,
            }
        }
        ranges.push(range(begin, Some(same), &way));
        (begin, way, below) = (other, ask(other), other);
    }
    ranges.push(range(begin, None, &way));
    ranges
}

fn range(from: usize, to: Option<usize>, way: &Explanation) -> Value {
    let rejected: Vec<Value> = way
        .rejected
        .iter()
        .map(|(way, why)| json!({ "way": way, "reason": why }))
        .collect();
    let plans: Vec<Value> = way
        .plans
        .iter()
        .map(|plan| {
            json!({
                "mover": plan.mover.to_string(),
                "by": plan.by.to_string(),
                "copies": plan.copies,
                "staged": plan.is_staged,
                "when": plan.when.map(|when| when.to_string()),
            })
        })
        .collect();
    json!({
        "from": from,
        "to": to,
        "way": way.chosen,
        "plans": plans,
        "possible": way.is_possible,
        "staged": way.is_staged,
        "fragment": way.fragment,
        "rejected": rejected,
    })
}
