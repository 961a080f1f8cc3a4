//! Curves of the modules or regions of a program, and of its regions of interest.

use memgauge_emulate::ReferenceBatch;
use memgauge_import::addresses::AddressBatch;

use super::args::CurveOptions;
use super::engine::Engines;
use super::input_curves::InputCurves;

/// Engines for each part, by number.
pub(super) struct PartEngines<'a> {
    making: &'a CurveOptions,
    engines: Vec<Option<Engines>>,
    /// References of a batch, by part.
    sorted: Vec<AddressBatch>,
    /// Instructions of each part, where they are known.
    instructions: Vec<u64>,
    knows_instructions: bool,
    names: Vec<String>,
}

impl PartEngines<'_> {
    pub(super) fn new(making: &CurveOptions) -> PartEngines<'_> {
        PartEngines {
            making,
            engines: Vec::new(),
            sorted: Vec::new(),
            instructions: Vec::new(),
            knows_instructions: false,
            names: Vec::new(),
        }
    }

    /// Gives each reference to the engines of its part.
    pub(super) fn feed(&mut self, batch: &ReferenceBatch<'_>) -> anyhow::Result<()> {
        self.names
            .extend_from_slice(&batch.part_names[self.names.len()..]);
        self.sorted
            .resize_with(self.names.len(), AddressBatch::default);
        self.engines.resize_with(self.names.len(), || None);
        self.instructions.resize(self.names.len(), 0);
        self.knows_instructions |= !batch.part_instructions.is_empty();
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

    fn sort(&mut self, batch: &ReferenceBatch<'_>) {
        let mut crossing = batch.crossing;
        for (at, &(from, set)) in batch.parts.iter().enumerate() {
            let next = batch.parts.get(at + 1);
            let to = next.map_or(batch.addresses.len(), |next| next.0);
            let (within, after) = crossing.split_at(crossing.partition_point(|c| c.0 < to));
            crossing = after;
            for &part in &batch.part_sets[set as usize] {
                let part = part as usize;
                let accesses = &mut self.sorted[part];
                let before = accesses.addresses.len();
                let sizes = within.iter();
                let sizes = sizes.map(|&(at, bytes)| (before + at - from, bytes));
                accesses.sizes.extend(sizes);
                accesses
                    .addresses
                    .extend_from_slice(&batch.addresses[from..to]);
                self.instructions[part] += batch.part_instructions.get(at).unwrap_or(&0);
            }
        }
    }

    /// Returns names and curves, most references first. MPKI are relative to the instructions of
    /// the part if they are known, otherwise to those of the whole run.
    pub(super) fn finish(self, instructions: u64) -> anyhow::Result<Vec<(String, InputCurves)>> {
        let mut all = Vec::new();
        let parts = self.engines.into_iter().zip(self.instructions);
        for (name, (engines, own)) in self.names.into_iter().zip(parts) {
            let Some(engines) = engines else { continue };
            let instructions = match self.knows_instructions {
                true => own,
                false => instructions,
            };
            let made = InputCurves {
                curves: engines.finish()?,
                note: None,
                weight: 1.0,
                instructions: Some(instructions),
                is_damaged: false,
            };
            all.push((name, made));
        }
        let references =
            |made: &InputCurves| made.curves.first().map_or(0.0, |c| c.curve().references);
        all.sort_by(|a, b| references(&b.1).total_cmp(&references(&a.1)));
        Ok(all)
    }
}
