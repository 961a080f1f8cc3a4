//! Curves of the modules or regions of a program.

use memgauge_emulate::Batch;

use super::addresses::Accesses;
use super::args::CurveOptions;
use super::engine::Engines;
use super::feed::InputCurves;

/// Engines for each part, by number.
pub(super) struct Parts<'a> {
    making: &'a CurveOptions,
    engines: Vec<Option<Engines>>,
    /// References of a batch, by part.
    sorted: Vec<Accesses>,
    names: Vec<String>,
}

impl Parts<'_> {
    pub(super) fn new(making: &CurveOptions) -> Parts<'_> {
        Parts {
            making,
            engines: Vec::new(),
            sorted: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Gives each reference to the engines of its part.
    pub(super) fn feed(&mut self, batch: &Batch<'_>) -> anyhow::Result<()> {
        self.names
            .extend_from_slice(&batch.part_names[self.names.len()..]);
        self.sorted.resize_with(self.names.len(), Accesses::default);
        self.engines.resize_with(self.names.len(), || None);
        self.sort(batch);
        for (engines, accesses) in self.engines.iter_mut().zip(&mut self.sorted) {
            if !accesses.addresses.is_empty() {
                let engines = engines.get_or_insert_with(|| Engines::new(self.making));
                engines.feed(&accesses.addresses, &accesses.sizes)?;
                accesses.clear();
            }
        }
        Ok(())
    }

    fn sort(&mut self, batch: &Batch<'_>) {
        let mut crossing = batch.crossing.iter().peekable();
        for (at, &(from, part)) in batch.parts.iter().enumerate() {
            let next = batch.parts.get(at + 1);
            let to = next.map_or(batch.addresses.len(), |next| next.0);
            let accesses = &mut self.sorted[part as usize];
            while let Some(&(at, bytes)) = crossing.next_if(|c| c.0 < to) {
                let place = accesses.addresses.len() + at - from;
                accesses.sizes.push((place, bytes));
            }
            accesses
                .addresses
                .extend_from_slice(&batch.addresses[from..to]);
        }
    }

    /// Names and curves, most references first. MPKI are of the whole run's
    /// instructions.
    pub(super) fn finish(self, instructions: u64) -> anyhow::Result<Vec<(String, InputCurves)>> {
        let mut all = Vec::new();
        for (name, engines) in self.names.into_iter().zip(self.engines) {
            let Some(engines) = engines else { continue };
            let made = InputCurves {
                curves: engines.finish()?,
                note: None,
                weight: 1.0,
                instructions: Some(instructions),
            };
            all.push((name, made));
        }
        let references =
            |made: &InputCurves| made.curves.first().map_or(0.0, |c| c.curve().references);
        all.sort_by(|a, b| references(&b.1).total_cmp(&references(&a.1)));
        Ok(all)
    }
}
