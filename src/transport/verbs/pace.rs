//! How fast each rail is, by the pieces that it has moved, and which one a piece goes over: that by which it is there first. So rails share long transfers by
//! what each is worth at the moment, and a slow one holds up none of them.
//!
//! A rail is measured while it has pieces under way: what it brought, by the time since the piece before ended, or since the first was posted where nothing was
//! under way. The last dozen or so count. One stall counts for eight pieces at most, and no rail for less than an eighth of the fastest: it goes on being used, and so
//! measured.

use std::time::Instant;

/// Shorter pieces say more about the way there than about its breadth, in bytes: they are told of by nobody.
pub(super) const MEASURED: u64 = 64 << 10;
/// The share of a new piece in the sums.
const NEW: f64 = 1.0 / 16.0;
/// What a rail counts for at least, of the fastest.
const LEAST: f64 = 0.125;
/// How much longer than those before it one piece may count.
const LONGEST: f64 = 8.0;
/// From so many pieces on a speed is believed.
const ENOUGH: u32 = 8;
/// Speeds that are so near to each other, by the slower one's share in the faster, are told as one.
const ALIKE: f64 = 0.6;

/// One rail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Bytes under way.
    flying: u64,
    /// Bytes, and the seconds that they took; what is older counts for less.
    moved: (f64, f64),
    /// Pieces that were measured, up to [`ENOUGH`].
    pieces: u32,
    /// When the last piece ended, or the first was posted.
    since: Option<Instant>,
}

impl Pace {
    /// A piece was posted.
    pub(super) fn posted(&mut self, bytes: u64, now: Instant) {
        if self.flying == 0 {
            self.since = Some(now);
        }
        self.flying += bytes;
    }

    /// A piece has ended. Several may be met at one look: the first took all the time, the others none.
    pub(super) fn ended(&mut self, bytes: u64, now: Instant) {
        self.flying = self.flying.saturating_sub(bytes);
        let Some(since) = self.since.replace(now) else {
            return;
        };
        let mut took = now.saturating_duration_since(since).as_secs_f64();
        if let Some(speed) = self.speed() {
            took = took.min(LONGEST * bytes as f64 / speed);
        }
        let (sum, time) = self.moved;
        self.moved = (sum * (1.0 - NEW) + bytes as f64, time * (1.0 - NEW) + took);
        self.pieces = ENOUGH.min(self.pieces + 1);
    }

    /// Nothing of it is under way any more.
    pub(super) fn emptied(&mut self) {
        self.flying = 0;
    }

    /// Bytes a second, once that is known.
    fn speed(&self) -> Option<f64> {
        let (bytes, time) = self.moved;
        (self.pieces == ENOUGH && time > 0.0).then(|| bytes / time)
    }
}

/// What each counts for; the unmeasured for as much as the fastest, so that they are measured.
fn worth<'a>(rails: impl Iterator<Item = &'a Pace> + Clone) -> impl Fn(&Pace) -> f64 {
    let fastest = rails.filter_map(Pace::speed).fold(0.0, f64::max);
    move |pace| match pace.speed() {
        Some(speed) => speed.max(fastest * LEAST),
        None if fastest > 0.0 => fastest,
        None => 1.0,
    }
}

/// By which of some rails a piece of so many bytes is there first; the first of those that are alike.
pub(super) fn first<'a>(
    rails: impl Iterator<Item = &'a Pace> + Clone,
    bytes: u64,
) -> Option<usize> {
    let worth = worth(rails.clone());
    let ends = |pace: &Pace| (pace.flying + bytes) as f64 / worth(pace);
    let ends = rails.map(ends).enumerate();
    ends.min_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(index, _)| index)
}

/// The share of each rail in hundredths, where they were measured and differ.
pub(super) fn shares(rails: &[Pace]) -> Option<Vec<u32>> {
    let worth = worth(rails.iter());
    let all: Vec<f64> = rails.iter().map(worth).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    if rails.len() < 2 || rails.iter().any(|pace| pace.speed().is_none()) || least > most * ALIKE {
        return None;
    }
    let sum: f64 = all.iter().sum();
    Some(
        all.iter()
            .map(|one| (100.0 * one / sum).round() as u32)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PIECE: u64 = 512 << 10;

    /// Rails that move so many pieces a second each, in time that the test makes: how many pieces each had of so many, four under way for each rail.
    fn played(paces: &mut [Pace], speeds: &[f64], pieces: usize, now: &mut Instant) -> Vec<usize> {
        let mut had = vec![0; paces.len()];
        let mut ends: Vec<Vec<Instant>> = vec![Vec::new(); paces.len()];
        let (mut posted, mut over) = (0, 0);
        while over < pieces {
            while posted < pieces && posted - over < 4 * paces.len() {
                let rail = first(paces.iter(), PIECE).expect("a rail");
                paces[rail].posted(PIECE, *now);
                let takes = Duration::from_secs_f64(1.0 / speeds[rail]);
                let begins = ends[rail].last().copied().unwrap_or(*now).max(*now);
                ends[rail].push(begins + takes);
                (had[rail], posted) = (had[rail] + 1, posted + 1);
            }
            let next = (0..paces.len()).filter(|rail| !ends[*rail].is_empty());
            let rail = next
                .min_by_key(|rail| ends[*rail][0])
                .expect("some are under way");
            *now = (*now).max(ends[rail].remove(0));
            paces[rail].ended(PIECE, *now);
            over += 1;
        }
        had
    }

    #[test]
    fn alike_rails_take_turns() {
        let mut paces = [Pace::default(); 2];
        let had = played(&mut paces, &[1000.0, 1000.0], 1000, &mut Instant::now());
        assert!(had[0].abs_diff(had[1]) < 20, "{had:?}");
        assert_eq!(shares(&paces), None);
    }

    #[test]
    fn rails_share_by_their_speeds() {
        for (fast, slow) in [(2.0, 1.0), (4.0, 1.0), (1.0, 3.0)] {
            let mut paces = [Pace::default(); 2];
            let speeds = [fast * 1000.0, slow * 1000.0];
            let had = played(&mut paces, &speeds, 2000, &mut Instant::now());
            let share = had[0] as f64 / 2000.0;
            let fair = fast / (fast + slow);
            assert!((share - fair).abs() < 0.05, "{fast} to {slow}: {had:?}");
            let told = shares(&paces).expect("they differ");
            assert!((f64::from(told[0]) / 100.0 - fair).abs() < 0.05, "{told:?}");
        }
    }

    /// However long a stall was, the rail is used within the next pieces, and soon as before.
    #[test]
    fn a_stall_starves_no_rail() {
        let mut now = Instant::now();
        let mut paces = [Pace::default(); 2];
        let alike = [1000.0, 1000.0];
        played(&mut paces, &alike, 100, &mut now);
        paces[1].posted(PIECE, now);
        now += Duration::from_secs(3600);
        paces[1].ended(PIECE, now);
        let had = played(&mut paces, &alike, 60, &mut now);
        assert!(had[1] >= 3, "{had:?}");
        played(&mut paces, &alike, 1000, &mut now);
        let had = played(&mut paces, &alike, 100, &mut now);
        assert!(had[1] > 35, "{had:?}");
    }

    #[test]
    fn pieces_that_are_gone_count_for_nothing() {
        let now = Instant::now();
        let mut paces = [Pace::default(); 2];
        assert_eq!(first(paces.iter(), PIECE), Some(0));
        paces[0].posted(PIECE, now);
        assert_eq!(first(paces.iter(), PIECE), Some(1));
        paces[0].emptied();
        assert_eq!(first(paces.iter(), PIECE), Some(0));
        assert_eq!(first([].iter(), PIECE), None);
    }
}
