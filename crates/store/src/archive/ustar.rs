//! Plain tar archives, as in POSIX 1003.1-1988: 512 bytes of header, the content, zeros up to the next 512.
//!
//! Written: regular files, in exactly one form, so that the same files give the same archive. Read: regular files, and folders, which are
//! ignored; anything else, such as a link or a device, is an error. Memory is allocated for bytes that were read, not for the size in a
//! header.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;

/// The largest size that fits into the header's eleven octal digits.
pub(crate) const SIZE_MAX: u64 = 0o77_777_777_777;

/// Writes one file; `folder` and `name` are joined by a slash.
pub(crate) fn write(
    out: &mut dyn Write,
    folder: &str,
    name: &str,
    size: u64,
    seconds: u64,
    content: &mut dyn Read,
) -> io::Result<()> {
    out.write_all(&header(folder, name, size, seconds)?)?;
    let copied = io::copy(&mut content.take(size), out)?;
    if copied != size {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("`{name}` ended early")));
    }
    out.write_all(&[0; BLOCK][..padding(size)])
}

/// Ends an archive.
pub(crate) fn finish(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])?;
    out.flush()
}

fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

fn header(folder: &str, name: &str, size: u64, seconds: u64) -> io::Result<[u8; BLOCK]> {
    if name.len() > 100 || folder.len() > 155 || size > SIZE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` does not fit into a tar archive")));
    }
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", seconds.min(SIZE_MAX)).as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    put(345, folder.as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// The content of a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The whole path.
    pub(crate) path: String,
    /// How long the content is.
    pub(crate) size: u64,
    /// Whether it is a folder.
    pub(crate) is_folder: bool,
}

/// Reads the next header; none at the end of the archive.
pub(crate) fn read_header(archive: &mut dyn Read) -> io::Result<Option<Header>> {
    let mut block = [0; BLOCK];
    if !read_block(archive, &mut block)? {
        return Err(bad("it ends without an end marker"));
    }
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let sum: u32 =
        block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
    if &block[257..262] != b"ustar" || octal(&block[148..156]) != Some(u64::from(sum)) {
        return Err(bad("it is not a tar archive, or is damaged"));
    }
    let is_folder = match block[156] {
        b'0' | 0 => false,
        b'5' => true,
        other => return Err(bad(&format!("it has an entry of kind `{}`, which is not a plain file", other as char))),
    };
    let size = octal(&block[124..136]).ok_or_else(|| bad("a size in it can't be read"))?;
    let text = |from: usize, to: usize| {
        let bytes = block[from..to].split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| bad("a name in it is not UTF-8"))
    };
    // In the older format of GNU tar these bytes are not the folder.
    let folder = if &block[257..263] == b"ustar\0" { text(345, 500)? } else { "" };
    let name = text(0, 100)?;
    let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    if is_folder && size != 0 {
        return Err(bad("a folder in it has a size"));
    }
    Ok(Some(Header { path, size, is_folder }))
}

/// How many bytes follow the end of an archive, from the first that is not zero; zeros may fill its last block.
pub(crate) fn trailing_bytes(archive: &mut dyn Read) -> io::Result<u64> {
    let mut buffer = [0; 8 * BLOCK];
    let mut zeros = 0;
    let mut trailing = 0;
    loop {
        let read = match archive.read(&mut buffer) {
            Ok(0) => return Ok(trailing),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let from = if trailing > 0 { Some(0) } else { buffer[..read].iter().position(|byte| *byte != 0) };
        match from {
            Some(from) => trailing += (read - from) as u64,
            None => zeros += read,
        }
        // No tar program pads with more than this.
        if trailing == 0 && zeros > 1 << 20 {
            trailing = zeros as u64;
        }
    }
}

/// Skips the zeros after a content of this size.
pub(crate) fn skip_padding(archive: &mut dyn Read, size: u64) -> io::Result<()> {
    let mut zeros = [0; BLOCK];
    archive.read_exact(&mut zeros[..padding(size)]).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => bad("it is truncated after a file"),
        _ => error,
    })
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(text, 8).ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn read_block(archive: &mut dyn Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut done = 0;
    while done < BLOCK {
        match archive.read(&mut block[done..])? {
            0 if done == 0 => return Ok(false),
            0 => return Err(bad("it is truncated")),
            read => done += read,
        }
    }
    Ok(true)
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut archive = Vec::new();
        write(&mut archive, "folder", "name", 3, 1, &mut &b"abc"[..]).unwrap();
        finish(&mut archive).unwrap();
        assert_eq!(archive.len(), 4 * BLOCK);
        let mut reader = archive.as_slice();
        let header = read_header(&mut reader).unwrap().unwrap();
        assert_eq!(header, Header { path: "folder/name".to_owned(), size: 3, is_folder: false });
        reader = &reader[3..];
        skip_padding(&mut reader, 3).unwrap();
        assert_eq!(read_header(&mut reader).unwrap(), None);
    }

    #[test]
    fn links_and_damaged_headers_are_refused() {
        let mut archive = Vec::new();
        write(&mut archive, "folder", "name", 0, 1, &mut io::empty()).unwrap();
        for at in 0..BLOCK {
            let mut changed = archive.clone();
            changed[at] ^= 1;
            assert!(read_header(&mut changed.as_slice()).is_err(), "byte {at}");
        }
        let mut link = archive;
        link[156] = b'2';
        let sum: u32 = link[..BLOCK]
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        link[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(read_header(&mut link.as_slice()).unwrap_err().to_string().contains("kind `2`"));
        assert!(read_header(&mut io::empty()).is_err(), "an archive has an end marker");
    }
}
