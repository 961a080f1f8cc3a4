//! Inputs of an import: a file of perf, a directory of `perf record --threads`, or a stream from a
//! pipe.
//!
//! Records are read twice, because times start at the earliest record. A pipe cannot be read twice,
//! so its stream is kept in an unnamed file on the output's file system until it is imported. The
//! same applies to the content of a compressed file. An unnamed file disappears when memgauge ends,
//! for whatever reason.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::compression::decompress;
use crate::{Error, ErrorKind, Result};

/// Number of bytes read at a time.
const BUFFER_BYTES: usize = 1 << 16;
/// Magic numbers of perf's files in both byte orders, and of version 1.
const MAGICS: [&[u8; 8]; 4] = [b"PERFILE2", b"2ELIFREP", b"PERFFILE", b"ELIFFREP"];

/// An input that can be read twice.
#[derive(Debug)]
pub struct Input {
    /// The file with the header.
    pub(super) main: BufReader<File>,
    /// Further files, which contain only records.
    pub(super) further: Vec<(PathBuf, BufReader<File>)>,
    /// Directory with the file system of the recorded machine.
    pub symfs: Option<PathBuf>,
    /// Time at which the input was last written; for a pipe, the time at which it was read.
    pub(super) last_write: SystemTime,
}

impl Input {
    /// Opens a file, a directory, a pipe, or standard input for `-`. The stream of a pipe is kept
    /// in `folder`.
    ///
    /// # Errors
    /// There is no such input, or it is not perf data.
    pub fn open(path: &Path, folder: &Path) -> Result<Input> {
        let device = match path.to_str() {
            Some("-") => Path::new("/dev/stdin"),
            _ => path,
        };
        let file = open_file(device)?;
        let kind = file.metadata().map_err(|e| failed(path, e))?.file_type();
        if kind.is_dir() {
            return Input::directory(path);
        }
        if !kind.is_file() {
            return Ok(Input::from_file(save_pipe(file, folder)?));
        }
        match directory_of(path) {
            Some(directory) => Input::directory(directory),
            None => {
                let mut input = Input::from_file(decompressed(
                    file.try_clone().map_err(|e| failed(path, e))?,
                    folder,
                )?);
                input.last_write = modified_time(&file);
                Ok(input)
            }
        }
    }

    fn from_file(file: File) -> Input {
        Input {
            symfs: None,
            last_write: modified_time(&file),
            main: BufReader::with_capacity(BUFFER_BYTES, file),
            further: Vec::new(),
        }
    }

    fn directory(path: &Path) -> Result<Input> {
        let head = path.join("data");
        if !head.is_file() {
            let why = "the directory has no file `data`; use a file written by `perf record`, or \
                       a directory written by `perf record --threads`";
            return Err(Error::new(ErrorKind::BadInput, why));
        }
        let mut input = Input::from_file(open_file(&head)?);
        for name in record_files(path)? {
            let file = BufReader::with_capacity(BUFFER_BYTES, open_file(&name)?);
            input.further.push((name, file));
        }
        Ok(input)
    }

    /// Rewinds to the start.
    pub(super) fn rewind(&mut self) -> Result<()> {
        let again = |e| Error::system("failed to read perf data again", e);
        self.main.rewind().map_err(again)?;
        for (_, file) in &mut self.further {
            file.rewind().map_err(again)?;
        }
        Ok(())
    }
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::system(format!("failed to open `{}`", path.display()), e)
}

fn open_file(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| failed(path, e))
}

/// If the user named the `data` of a directory, returns the directory: the records are in its other
/// files.
fn directory_of(path: &Path) -> Option<&Path> {
    let folder = path.parent().filter(|_| path.ends_with("data"))?;
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    folder.join("data.0").is_file().then_some(folder)
}

/// Returns `data.0`, `data.1` and so on, in order.
fn record_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| failed(folder, e))?;
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| failed(folder, e))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("data."));
        let number = number.and_then(|digits| digits.parse::<u32>().ok());
        all.extend(number.map(|number| (number, entry.path())));
    }
    all.sort_unstable();
    Ok(all.into_iter().map(|(_, path)| path).collect())
}

fn modified_time(file: &File) -> SystemTime {
    let written = file.metadata().and_then(|metadata| metadata.modified());
    written.unwrap_or_else(|_| SystemTime::now())
}

/// Copies the decompressed stream of a pipe into an unnamed file.
fn save_pipe(pipe: File, folder: &Path) -> Result<File> {
    let mut content = decompress(pipe)?.content;
    let read = |e| Error::system("failed to read from the pipe", e);
    let head = content.fill_buf().map_err(read)?;
    if !MAGICS.iter().any(|magic| head.starts_with(*magic)) {
        let why = "the pipe does not contain perf data: its first bytes are not PERFILE2";
        return Err(Error::new(ErrorKind::BadInput, why));
    }
    unnamed_copy(content, folder)
}

/// Returns the file itself, or its decompressed content in an unnamed file.
pub(super) fn decompressed(mut file: File, folder: &Path) -> Result<File> {
    let unpacked = decompress(&file)?;
    if unpacked.compression.is_some() {
        return unnamed_copy(unpacked.content, folder);
    }
    drop(unpacked);
    let rewound = file.rewind();
    rewound.map_err(|e| Error::system("failed to read the input again", e))?;
    Ok(file)
}

fn unnamed_copy(mut content: impl Read, folder: &Path) -> Result<File> {
    let keep = |e| {
        let message = format!(
            "failed to store the input's content in `{}` during the import; use another place \
             with -o",
            folder.display()
        );
        Error::system(message, e)
    };
    let mut file = tempfile::tempfile_in(folder).map_err(keep)?;
    io::copy(&mut content, &mut file).map_err(keep)?;
    file.rewind().map_err(keep)?;
    Ok(file)
}
