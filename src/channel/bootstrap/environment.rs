//! What launchers tell the processes that they start, by environment variables.
//!
//! | launcher | rank, size | rank and size on the host | where rank 0 is |
//! |---|---|---|---|
//! | wharf's own | `WHARF_RANK`, `WHARF_SIZE` | | `WHARF_ROOT` |
//! | torchrun | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | `…_LOCAL_RANK`, `…_LOCAL_SIZE` | `MASTER_ADDR`, `MASTER_PORT`; all on one host: a Unix socket named by the job |
//! | PMI (MPICH, Hydra, Intel MPI) | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` (of a step: `SLURM_STEP_NUM_TASKS`) | `SLURM_LOCALID` | the first host of `SLURM_STEP_NODELIST`, or `SLURM_NODELIST`; a port of the job's number |
//! | Kubernetes | `JOB_COMPLETION_INDEX`, `WORLD_SIZE` or `WHARF_SIZE` | | the pod with index 0, by `HOSTNAME` and the headless service `WHARF_SERVICE` |
//!
//! `WHARF_ROOT` (`host:port`, or the digits of a [`UniqueId`]) says where rank 0 is under every launcher, `WHARF_PORT` another port than the usual,
//! `WHARF_SECRET` the secret that all must prove. Where several launchers speak, as when `torchrun` runs under Slurm, the first in the table counts: it is
//! the innermost.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{
    contract::Bootstrap,
    limits::MAX_SIZE,
    memory::MemoryBootstrap,
    options::BootstrapOptions,
    tcp::{Meeting, TcpBootstrap},
    unique_id::UniqueId,
    unix::UnixBootstrap,
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::text::words,
};

/// The port where rank 0 listens when nothing says another: torchrun's.
const PORT: u16 = 29500;
/// Ports by Slurm's job numbers: from the first, so many; below what systems give to outgoing connections.
const SLURM_PORTS: (u64, u64) = (15_000, 16_384);

/// Environment variables, as a map that tests can fill.
pub type Variables = BTreeMap<String, String>;

/// Who started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Somebody who set `WHARF_RANK` and `WHARF_SIZE`.
    Wharf,
    /// PyTorch's `torchrun`, and all that speak like it.
    Torchrun,
    /// Open MPI's `mpirun`, and PRRTE.
    OpenMpi,
    /// A launcher with a process management interface: MPICH's Hydra, Intel MPI, `srun --mpi=pmi2`.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
    /// An indexed job of Kubernetes.
    Kubernetes,
}

words! {
    Launcher, "launcher":
    Wharf = "WHARF_RANK and WHARF_SIZE",
    Torchrun = "torchrun",
    OpenMpi = "Open MPI",
    Pmi = "PMI",
    Slurm = "Slurm",
    Kubernetes = "Kubernetes",
}

/// Where the ranks of a launch meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RootPlace {
    /// Rank 0 is alone.
    Nowhere,
    /// `host:port`, where rank 0 listens.
    Address(String),
    /// Where rank 0 listens already.
    Id(UniqueId),
    /// A name on this host.
    Name(String),
}

/// For people; of an id, without its secret.
impl fmt::Display for RootPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("nowhere"),
            Self::Address(address) => f.write_str(address),
            Self::Id(id) => id.places_for_people(f),
            Self::Name(name) => write!(f, "{name} on this host"),
        }
    }
}

/// What a launcher told this process of its group.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    launcher: Launcher,
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    place: RootPlace,
    secret: Option<String>,
}

impl Launch {
    /// Reads this process's environment. `None` when no launcher has left anything there.
    ///
    /// # Errors
    /// `Configuration`, with the names of the variables, when some are missing, are no numbers or contradict each other.
    pub fn from_environment() -> Result<Option<Self>> {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::from_variables(&variables)
    }

    /// Reads variables. `None` when no launcher has left anything there.
    ///
    /// # Errors
    /// As [`Launch::from_environment`].
    pub fn from_variables(variables: &Variables) -> Result<Option<Self>> {
        let read = Reading { variables };
        let found = [
            Reading::wharf,
            Reading::torchrun,
            Reading::open_mpi,
            Reading::pmi,
            Reading::slurm,
            Reading::kubernetes,
        ]
        .into_iter()
        .find_map(|reader| reader(&read).transpose());
        let Some(found) = found.transpose()? else {
            return Ok(None);
        };
        read.finish(found).map(Some)
    }

    /// Who started the processes.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }
    /// This process's number.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
    /// This process's number on its host, for choosing a device.
    #[must_use]
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }
    /// How many there are on its host.
    #[must_use]
    pub fn local_size(&self) -> Option<usize> {
        self.local_size
    }
    /// Where they meet.
    #[must_use]
    pub fn place(&self) -> &RootPlace {
        &self.place
    }

    /// Joins the group. A secret of the environment counts where the options have none.
    ///
    /// # Errors
    /// As [`TcpBootstrap::join`].
    ///
    /// # Cancel safety
    /// As [`TcpBootstrap::join`].
    pub async fn join(&self, options: &BootstrapOptions) -> Result<Box<dyn Bootstrap>> {
        let mut options = options.clone();
        if let (None, Some(secret)) = (&options.secret, &self.secret) {
            options = options.secret(secret);
        }
        let (rank, size) = (self.rank, self.size);
        let meeting: Meeting = match &self.place {
            RootPlace::Nowhere => {
                let group = MemoryBootstrap::group_with_deadline(1, options.deadline)?;
                let alone = group.into_iter().next();
                return alone
                    .map(|alone| Box::new(alone) as Box<dyn Bootstrap>)
                    .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "a group of none"));
            }
            RootPlace::Name(name) => {
                return Ok(Box::new(
                    UnixBootstrap::join(name, rank, size, &options).await?,
                ));
            }
            RootPlace::Address(address) => address.as_str().into(),
            RootPlace::Id(id) => id.clone().into(),
        };
        Ok(Box::new(
            TcpBootstrap::join(meeting, rank, size, &options).await?,
        ))
    }
}

/// Without the secret.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("launcher", &self.launcher)
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("local_rank", &self.local_rank)
            .field("local_size", &self.local_size)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// What one launcher's variables say.
struct Found {
    launcher: Launcher,
    rank: (&'static str, usize),
    size: (&'static str, usize),
    local_rank: Option<(&'static str, usize)>,
    local_size: Option<(&'static str, usize)>,
    /// Where rank 0 is, as far as this launcher's own variables tell; the error says what is missing.
    place: Result<RootPlace>,
}

struct Reading<'a> {
    variables: &'a Variables,
}

impl Reading<'_> {
    /// A variable that is there and not empty.
    fn text(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?.trim();
        (!value.is_empty()).then_some(value)
    }

    fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<(&'static str, T)>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some((name, number))),
            Err(_) => Err(wrong(format!("{name} is {text:?}, and not a number"))),
        }
    }

    /// Rank and size, by the first name of each that is there. `None` without a rank and without the first name of a size.
    #[expect(clippy::type_complexity, reason = "two numbers with their names")]
    fn pair(
        &self,
        launcher: Launcher,
        ranks: &[&'static str],
        sizes: &[&'static str],
    ) -> Result<Option<((&'static str, usize), (&'static str, usize))>> {
        let first = |names: &[&'static str]| {
            names
                .iter()
                .find_map(|name| self.number::<usize>(name).transpose())
                .transpose()
        };
        let missing = |there: &str, names: &[&str]| {
            wrong(format!(
                "{launcher}: {there} is set, {} is not",
                names.join(" or ")
            ))
        };
        match (first(ranks)?, first(sizes)?) {
            (Some(rank), Some(size)) => Ok(Some((rank, size))),
            (None, None) => Ok(None),
            (Some((there, _)), None) => Err(missing(there, sizes)),
            (None, Some((there, _))) => Err(missing(there, ranks)),
        }
    }

    fn wharf(&self) -> Result<Option<Found>> {
        let pair = self.pair(Launcher::Wharf, &["WHARF_RANK"], &["WHARF_SIZE"]);
        // A size alone is a word for Kubernetes, which has none of its own.
        if self.text("WHARF_RANK").is_none() {
            return Ok(None);
        }
        let Some((rank, size)) = pair? else {
            return Ok(None);
        };
        Ok(Some(Found {
            launcher: Launcher::Wharf,
            rank,
            size,
            local_rank: None,
            local_size: None,
            place: Err(wrong(
                "WHARF_RANK and WHARF_SIZE are set, WHARF_ROOT is not: nothing says where rank 0 is".to_owned(),
            )),
        }))
    }

    fn torchrun(&self) -> Result<Option<Found>> {
        // A size alone is a word for Kubernetes.
        if self.text("RANK").is_none() && self.text("JOB_COMPLETION_INDEX").is_some() {
            return Ok(None);
        }
        let Some((rank, size)) = self.pair(Launcher::Torchrun, &["RANK"], &["WORLD_SIZE"])? else {
            return Ok(None);
        };
        Ok(Some(Found {
            launcher: Launcher::Torchrun,
            rank,
            size,
            local_rank: self.number("LOCAL_RANK")?,
            local_size: self.number("LOCAL_WORLD_SIZE")?,
            place: self.master().and_then(|master| {
                master.ok_or_else(|| {
                    wrong(
                        "RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not: nothing says where rank 0 is"
                            .to_owned(),
                    )
                })
            }),
        }))
    }

    fn open_mpi(&self) -> Result<Option<Found>> {
        let pair = self.pair(
            Launcher::OpenMpi,
            &["OMPI_COMM_WORLD_RANK"],
            &["OMPI_COMM_WORLD_SIZE"],
        )?;
        let Some((rank, size)) = pair else {
            return Ok(None);
        };
        let pmix = self.number::<usize>("PMIX_RANK")?;
        if let Some(pmix) = pmix.filter(|pmix| pmix.1 != rank.1) {
            return Err(contradiction(rank, pmix));
        }
        let local_size = self.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
        let job = [
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_ess_jobid",
        ]
        .iter()
        .find_map(|name| self.text(name));
        let place = match (self.master(), job) {
            (Err(error), _) => Err(error),
            (Ok(Some(master)), _) => Ok(master),
            (Ok(None), Some(job)) if local_size.is_some_and(|local| local.1 == size.1) => {
                Ok(RootPlace::Name(format!("ompi-{}", short(job))))
            }
            _ => Err(wrong(
                "Open MPI does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT, or WHARF_ROOT (mpirun -x)"
                    .to_owned(),
            )),
        };
        Ok(Some(Found {
            launcher: Launcher::OpenMpi,
            rank,
            size,
            local_rank: self.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
            local_size,
            place,
        }))
    }

    fn pmi(&self) -> Result<Option<Found>> {
        let Some((rank, size)) = self.pair(Launcher::Pmi, &["PMI_RANK"], &["PMI_SIZE"])? else {
            return Ok(None);
        };
        Ok(Some(Found {
            launcher: Launcher::Pmi,
            rank,
            size,
            local_rank: self.number("MPI_LOCALRANKID")?,
            local_size: self.number("MPI_LOCALNRANKS")?,
            place: self.master().and_then(|master| {
                master.ok_or_else(|| {
                    wrong("PMI does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT, or WHARF_ROOT".to_owned())
                })
            }),
        }))
    }

    fn slurm(&self) -> Result<Option<Found>> {
        // An allocation alone (`salloc`, `sbatch`) has started nothing yet.
        if self.text("SLURM_PROCID").is_none() {
            return Ok(None);
        }
        let pair = self.pair(
            Launcher::Slurm,
            &["SLURM_PROCID"],
            &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        )?;
        let Some((rank, size)) = pair else {
            return Ok(None);
        };
        let place = self.master().and_then(|master| match master {
            Some(master) => Ok(master),
            None => self.slurm_place(),
        });
        Ok(Some(Found {
            launcher: Launcher::Slurm,
            rank,
            size,
            local_rank: self.number("SLURM_LOCALID")?,
            local_size: None,
            place,
        }))
    }

    fn slurm_place(&self) -> Result<RootPlace> {
        let names = [
            "SLURM_STEP_NODELIST",
            "SLURM_NODELIST",
            "SLURM_JOB_NODELIST",
        ];
        let list = names.iter().find_map(|name| Some((name, self.text(name)?)));
        let Some((name, list)) = list else {
            return Err(wrong(format!(
                "Slurm: {} are not set: nothing says where rank 0 is",
                names.join(", ")
            )));
        };
        let host = first_host(list)
            .ok_or_else(|| wrong(format!("{name} is {list:?}, and not a list of hosts")))?;
        let port = match self.port()? {
            Some(port) => port,
            None => {
                let job = match self.number::<u64>("SLURM_JOB_ID")? {
                    Some(job) => Some(job),
                    None => self.number::<u64>("SLURM_JOBID")?,
                };
                let Some((_, job)) = job else {
                    return Err(wrong(
                        "Slurm: SLURM_JOB_ID is not set, and WHARF_PORT is not either: nothing says which port is rank 0's"
                            .to_owned(),
                    ));
                };
                let step = self
                    .number::<u64>("SLURM_STEP_ID")?
                    .map_or(0, |step| step.1);
                let (first, count) = SLURM_PORTS;
                // Steps of one job, and jobs that follow each other, do not meet.
                (first + job.wrapping_mul(31).wrapping_add(step) % count) as u16
            }
        };
        Ok(RootPlace::Address(format!("{host}:{port}")))
    }

    fn kubernetes(&self) -> Result<Option<Found>> {
        let Some(rank) = self.number::<usize>("JOB_COMPLETION_INDEX")? else {
            return Ok(None);
        };
        let size = match self.number("WHARF_SIZE")? {
            Some(size) => size,
            None => self.number("WORLD_SIZE")?.ok_or_else(|| {
                wrong(
                    "Kubernetes: JOB_COMPLETION_INDEX is set, WHARF_SIZE (the job's completions) is not"
                        .to_owned(),
                )
            })?,
        };
        let place = self.master().and_then(|master| match master {
            Some(master) => Ok(master),
            None => self.kubernetes_place(rank.1),
        });
        Ok(Some(Found {
            launcher: Launcher::Kubernetes,
            rank,
            size,
            local_rank: None,
            local_size: None,
            place,
        }))
    }

    /// A pod of an indexed job has the host name `JOB-INDEX`; within the headless service of its `subdomain` the others find it by that.
    fn kubernetes_place(&self, index: usize) -> Result<RootPlace> {
        let (Some(host), Some(service)) = (self.text("HOSTNAME"), self.text("WHARF_SERVICE"))
        else {
            return Err(wrong(
                "Kubernetes: HOSTNAME and WHARF_SERVICE (the headless service) have to be set: nothing says where rank 0 is"
                    .to_owned(),
            ));
        };
        let pod = host.split('.').next().unwrap_or_default();
        let job = pod
            .strip_suffix(&format!("-{index}"))
            .filter(|job| !job.is_empty())
            .ok_or_else(|| {
                wrong(format!(
                    "HOSTNAME is {host:?}, which does not end with JOB_COMPLETION_INDEX, -{index}"
                ))
            })?;
        let port = self.port()?.unwrap_or(PORT);
        Ok(RootPlace::Address(format!("{job}-0.{service}:{port}")))
    }

    fn port(&self) -> Result<Option<u16>> {
        // Where a service is called `wharf`, Kubernetes gives pods one that is an URL.
        if self
            .text("WHARF_PORT")
            .is_some_and(|text| text.contains("://"))
        {
            return Ok(None);
        }
        Ok(self.number::<u16>("WHARF_PORT")?.map(|port| port.1))
    }

    /// `MASTER_ADDR` and `MASTER_PORT`: both, or none.
    fn master(&self) -> Result<Option<RootPlace>> {
        let port = self.number::<u16>("MASTER_PORT")?;
        match (self.text("MASTER_ADDR"), port) {
            (Some(host), Some((_, port))) => Ok(Some(RootPlace::Address(host_port(host, port)))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(wrong("MASTER_ADDR is set, MASTER_PORT is not".to_owned())),
            (None, Some(_)) => Err(wrong("MASTER_PORT is set, MASTER_ADDR is not".to_owned())),
        }
    }

    /// `WHARF_ROOT`.
    fn root(&self) -> Result<Option<RootPlace>> {
        let Some(root) = self.text("WHARF_ROOT") else {
            return Ok(None);
        };
        if let Ok(id) = root.parse() {
            return Ok(Some(RootPlace::Id(id)));
        }
        match root.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Some(RootPlace::Address(root.to_owned())))
            }
            _ => Err(wrong(
                "WHARF_ROOT is neither host:port nor a unique id".to_owned(),
            )),
        }
    }

    /// Holds what was found against itself and against the other launchers.
    fn finish(&self, found: Found) -> Result<Launch> {
        let Found {
            launcher,
            rank,
            size,
            local_rank,
            local_size,
            place,
        } = found;
        if size.1 == 0 || size.1 > MAX_SIZE {
            return Err(wrong(format!(
                "{} is {}: a group has 1 to {} ranks",
                size.0, size.1, MAX_SIZE
            )));
        }
        if rank.1 >= size.1 {
            return Err(contradiction(rank, size));
        }
        for local in [local_rank, local_size].into_iter().flatten() {
            let most = if Some(local) == local_rank {
                size.1 - 1
            } else {
                size.1
            };
            if local.1 > most {
                return Err(contradiction(local, size));
            }
        }
        if let (Some(local_rank), Some(local_size)) = (local_rank, local_size)
            && local_rank.1 >= local_size.1
        {
            return Err(contradiction(local_rank, local_size));
        }
        self.agree(rank, size)?;
        let place = match self.root()? {
            Some(root) => root,
            None if size.1 == 1 => RootPlace::Nowhere,
            None => place?,
        };
        Ok(Launch {
            launcher,
            rank: rank.1,
            size: size.1,
            local_rank: local_rank.map(|local| local.1),
            local_size: local_size.map(|local| local.1),
            place,
            secret: self.text("WHARF_SECRET").map(str::to_owned),
        })
    }

    /// Another launcher that started as many processes has started these: then it has to have given the same numbers. One that started another number
    /// is further out, and started the launcher.
    fn agree(&self, rank: (&'static str, usize), size: (&'static str, usize)) -> Result<()> {
        for (other_rank, other_size) in [
            ("RANK", "WORLD_SIZE"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
        ] {
            let known = (
                self.number::<usize>(other_rank)?,
                self.number::<usize>(other_size)?,
            );
            if let (Some(other), Some(count)) = known
                && count.1 == size.1
                && other.1 != rank.1
            {
                return Err(contradiction(rank, other));
            }
        }
        Ok(())
    }
}

fn wrong(text: String) -> Error {
    Error::new(ErrorKind::Configuration, text)
}

fn contradiction(one: (&str, usize), other: (&str, usize)) -> Error {
    wrong(format!(
        "{} is {} and {} is {}: these contradict each other",
        one.0, one.1, other.0, other.1
    ))
}

/// `host:port`, an IPv6 address in brackets.
fn host_port(host: &str, port: u16) -> String {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// A name short enough for a socket, different for different names.
fn short(name: &str) -> String {
    format!("{:08x}-{}", crc32fast::hash(name.as_bytes()), name.len())
}

/// The first host of a list like Slurm's: `n1`, `n1,n2`, `n[01-04,07],x`, `r[1-2]n[3-4]`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        let (plain, after) = rest.split_at(end);
        host.push_str(plain);
        match after.strip_prefix('[') {
            Some(inner) => {
                let (numbers, after) = inner.split_once(']')?;
                let first = numbers.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|digit| digit.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = after;
            }
            None => break,
        }
    }
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(good)).then_some(host)
}
