//! Sections with debug information, which may be in several files.
//!
//! `-gsplit-dwarf` leaves a skeleton of each unit in the program, with addresses and lines, and puts
//! the rest in a `.dwo` file for each unit, or in a package of all (`.dwp`) beside the program.
//! `dwz -m` moves what several programs have in common to a supplementary file
//! (`.gnu_debugaltlink`).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gimli::{Dwarf, DwarfPackage, DwoId, EndianRcSlice, Reader, RunTimeEndian, Section, SectionId};
use memgauge_host::program::identity;
use object::{CompressionFormat, Object, ObjectSection, ReadCache};

use super::files::{debug_file, linked_path};

pub(super) type Slice = EndianRcSlice<RunTimeEndian>;

type ObjectFile<'a> = object::File<'a, &'a ReadCache<File>>;

/// Debug information of a file.
pub(super) struct DebugFile {
    pub(super) dwarf: Dwarf<Slice>,
    pub(super) split: SplitFiles,
}

/// Where the split units of a program are.
pub(super) struct SplitFiles {
    package: Option<DwarfPackage<Slice>>,
    /// Folders in which `.dwo` files may be, apart from the one in which they were written.
    folders: Vec<PathBuf>,
}

/// Files with debug information of a program that were not found.
#[derive(Debug, Default)]
pub(super) struct MissingFiles {
    pub(super) program: PathBuf,
    split: BTreeSet<PathBuf>,
    supplementary: Option<PathBuf>,
}

impl DebugFile {
    /// Reads the sections of a file with the debug information of a program, which may be the
    /// program itself. `None` if it has none.
    pub(super) fn read(path: &Path, missing: &mut MissingFiles) -> Option<DebugFile> {
        let mut dwarf = None;
        with_object(path, |object| {
            object.section_by_name(".debug_info")?;
            let mut own = sections(object, |id| Some(id.name()))?;
            if let Ok(Some((name, build_id))) = object.gnu_debugaltlink() {
                match supplementary(path, name, build_id) {
                    Some(supplementary) => own.set_sup(supplementary),
                    None => {
                        let name = String::from_utf8_lossy(name);
                        missing.supplementary = Some(PathBuf::from(name.into_owned()));
                    }
                }
            }
            dwarf = Some(own);
            Some(())
        })?;
        let dwarf = dwarf?;
        let files = [path, &missing.program];
        let package = files.iter().find_map(|file| package(file));
        let folders = files.iter().filter_map(|file| file.parent());
        let split = SplitFiles {
            package,
            folders: folders.map(Path::to_owned).collect(),
        };
        Some(DebugFile { dwarf, split })
    }
}

impl SplitFiles {
    /// Sections of a split unit of a program: `name` is its file, relative to `folder`.
    pub(super) fn unit(
        &self,
        id: DwoId,
        [folder, name]: [&Path; 2],
        program: &Dwarf<Slice>,
        missing: &mut MissingFiles,
    ) -> Option<Dwarf<Slice>> {
        let package = self.package.as_ref();
        let packed = package.and_then(|package| package.find_cu(id, program).ok()?);
        if packed.is_some() {
            return packed;
        }
        let moved = self.folders.iter().flat_map(|folder| {
            let name_alone = name.file_name().map(|name| folder.join(name));
            [Some(folder.join(name)), name_alone]
        });
        let mut files = [Some(folder.join(name))].into_iter().chain(moved);
        let unit = files.find_map(|path| split_file(&path?, id));
        match unit {
            Some(mut unit) => {
                unit.make_dwo(program);
                Some(unit)
            }
            None => {
                missing.split.insert(folder.join(name));
                None
            }
        }
    }
}

impl MissingFiles {
    pub(super) fn of(program: &Path) -> MissingFiles {
        MissingFiles {
            program: program.to_owned(),
            ..MissingFiles::default()
        }
    }

    pub(super) fn extend(&mut self, other: &MissingFiles) {
        self.split.extend(other.split.iter().cloned());
        let supplementary = self.supplementary.take();
        self.supplementary = supplementary.or_else(|| other.supplementary.clone());
    }

    /// One sentence about them. `None` if all files were found.
    pub(super) fn problem(&self) -> Option<String> {
        let (which, advice) = match (self.split.first(), &self.supplementary) {
            (None, None) => return None,
            (Some(first), _) => {
                let which = match self.split.len() {
                    1 => format!("`{}` is", first.display()),
                    all => format!("{all} .dwo files (`{}`, …) are", first.display()),
                };
                (
                    which,
                    "keep .dwo files, or package them beside the program (`dwp -e PROGRAM`)",
                )
            }
            (None, Some(supplementary)) => (
                format!("`{}` of dwz is", supplementary.display()),
                "install the debug package that has it",
            ),
        };
        Some(format!(
            "failed to read debug information of `{}`: {which} missing or of another build: some \
            code has no inlined functions and no types; {advice}",
            self.program.display()
        ))
    }
}

/// Runs a function on a program or object file. `None` if it is not one.
fn with_object<T>(path: &Path, run: impl FnOnce(&ObjectFile<'_>) -> Option<T>) -> Option<T> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let object = object::File::parse(&cache).ok()?;
    run(&object)
}

fn endian(object: &ObjectFile<'_>) -> RunTimeEndian {
    match object.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    }
}

fn section(object: &ObjectFile<'_>, name: Option<&str>) -> Slice {
    let section = name.and_then(|name| object.section_by_name(name));
    let bytes = section.and_then(|section| contents(&section));
    Slice::new(Rc::from(bytes.unwrap_or_default()), endian(object))
}

fn sections(
    object: &ObjectFile<'_>,
    name: impl Fn(&SectionId) -> Option<&'static str>,
) -> Option<Dwarf<Slice>> {
    let read = |id: SectionId| Ok::<_, gimli::Error>(section(object, name(&id)));
    Dwarf::load(read).ok()
}

/// Sections of the supplementary file that a file links to, if it is that of the link.
fn supplementary(path: &Path, name: &[u8], build_id: &[u8]) -> Option<Dwarf<Slice>> {
    let build_id = build_id.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("SANITY: a string takes all text");
        hex
    });
    let linked = linked_path(path, &String::from_utf8_lossy(name));
    let mut files = [linked, debug_file(&build_id)].into_iter().flatten();
    let file = files.find(|file| identity(file).is_some_and(|found| found.build_id == build_id))?;
    with_object(&file, |object| sections(object, |id| Some(id.name())))
}

/// The package of the split units of a program.
fn package(program: &Path) -> Option<DwarfPackage<Slice>> {
    let mut path = program.as_os_str().to_owned();
    path.push(".dwp");
    with_object(Path::new(&path), |object| {
        let empty = Slice::new(Rc::from([]), endian(object));
        let read = |id: SectionId| Ok::<_, gimli::Error>(section(object, id.dwo_name()));
        DwarfPackage::load(read, empty).ok()
    })
}

/// Sections of a `.dwo` file, if it has the unit.
fn split_file(path: &Path, id: DwoId) -> Option<Dwarf<Slice>> {
    let dwarf = with_object(path, |object| sections(object, |id| id.dwo_name()))?;
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
            return Some(dwarf);
        }
    }
    None
}

/// Whether some units of a file are split, or link to a supplementary file. Reads little: the
/// headers of units.
pub(super) fn is_in_several_files(path: &Path) -> bool {
    with_object(path, |object| {
        if object.section_by_name(".gnu_debugaltlink").is_some() {
            return Some(());
        }
        // Only split units of DWARF 4 have addresses apart.
        object.section_by_name(".debug_addr")?;
        let info = object.section_by_name(".debug_info")?;
        let compressed = info.compressed_file_range().ok()?;
        let file = File::open(path).ok()?;
        match compressed.format {
            CompressionFormat::None => {
                let bytes = compressed.uncompressed_size;
                find_split_unit(bytes, |at, header| {
                    file.read_exact_at(header, compressed.offset.checked_add(at)?)
                        .ok()
                })
            }
            _ => {
                let bytes = contents(&info)?;
                find_split_unit(bytes.len() as u64, |at, header| {
                    let at = usize::try_from(at).ok()?;
                    let found = bytes.get(at..at.checked_add(header.len())?)?;
                    header.copy_from_slice(found);
                    Some(())
                })
            }
        }
    })
    .is_some()
}

/// Looks for a skeleton in the headers of units.
///
/// ```text
/// unit_length 4 | version 2 | unit_type 1 …          (DWARF 5, 32-bit)
/// ff ff ff ff | unit_length 8 | version 2 | unit_type 1 …      (64-bit)
/// ```
fn find_split_unit(bytes: u64, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<()> {
    /// `DW_UT_skeleton`
    const SKELETON: u8 = 4;
    let mut at = 0;
    while at < bytes {
        let mut start = [0; 12];
        read(at, &mut start[..4])?;
        let short = u32::from_le_bytes([start[0], start[1], start[2], start[3]]);
        let (length_bytes, length) = match short {
            u32::MAX => {
                read(at, &mut start)?;
                let long = start
                    .last_chunk::<8>()
                    .map(|long| u64::from_le_bytes(*long))?;
                (12, long)
            }
            short => (4, u64::from(short)),
        };
        let mut header = [0; 3];
        read(at.checked_add(length_bytes)?, &mut header)?;
        let version = u16::from_le_bytes([header[0], header[1]]);
        if version < 5 || header[2] == SKELETON {
            return Some(());
        }
        at = at.checked_add(length_bytes)?.checked_add(length)?;
    }
    None
}

/// Whether the text of debug information contains a word.
pub(super) fn contains(dwarf: &Dwarf<Slice>, word: &[u8]) -> bool {
    let sections = [dwarf.debug_info.reader(), dwarf.debug_str.reader()];
    let mut texts = sections.iter().map(|reader| reader.bytes());
    texts.any(|text| memchr::memmem::find(text, word).is_some())
}

/// Number of bytes that entries of units have.
pub(super) fn info_bytes(dwarf: &Dwarf<Slice>) -> usize {
    dwarf.debug_info.reader().len()
}

/// Bytes of a section, which may be compressed.
fn contents<'a>(section: &impl ObjectSection<'a>) -> Option<Vec<u8>> {
    let data = section.compressed_data().ok()?;
    let bytes = usize::try_from(data.uncompressed_size).ok()?;
    let mut plain = Vec::new();
    match data.format {
        CompressionFormat::None => plain.extend_from_slice(data.data),
        CompressionFormat::Zlib => {
            let decoder = flate2::read::ZlibDecoder::new(data.data);
            decoder.take(bytes as u64).read_to_end(&mut plain).ok()?;
        }
        CompressionFormat::Zstandard => {
            let decoder = zstd::Decoder::new(data.data).ok()?;
            decoder.take(bytes as u64).read_to_end(&mut plain).ok()?;
        }
        _ => return None,
    }
    Some(plain)
}
