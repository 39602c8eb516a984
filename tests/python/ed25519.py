"""Ed25519 verification, strict, from RFC 8032 section 5.1. Verification only: there is no secret here, and nothing is constant-time.

A signature holds when S < L; A and R are canonical encodings (y < p) and not of small order; A is a point of the curve; and
R is, byte for byte, the encoding of S*B - k*A with k = SHA-512(R || A || M) mod L (that is the equation without the cofactor).

`python3 ed25519.py` runs the test vectors of RFC 8032 section 7.1 and tests of the refusals.
"""
import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493  # the order of the base point B
D = -121665 * pow(121666, -1, P) % P
D2 = 2 * D % P
SQRT_M1 = pow(2, (P - 1) // 4, P)
SIGN = 1 << 255

Y8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
SMALL_ORDER_Y = frozenset((0, 1, P - 1, Y8, P - Y8))  # the y of the 8 points of small order; x = 0 only for y = 1 and y = -1

# A point is (X, Y, Z, T): x = X/Z, y = Y/Z, x*y = T/Z. The neutral element:
ZERO = (0, 1, 1, 0)


def add(p, q):
    """p + q; the formulas are complete, so they double as well (RFC 8032 section 5.1.4)."""
    x1, y1, z1, t1 = p
    x2, y2, z2, t2 = q
    a = (y1 - x1) * (y2 - x2) % P
    b = (y1 + x1) * (y2 + x2) % P
    c = t1 * D2 * t2 % P
    d = 2 * z1 * z2 % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def negative(p):
    return (P - p[0], p[1], p[2], P - p[3])


def encode(p):
    inverse = pow(p[2], -1, P)
    x, y = p[0] * inverse % P, p[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(text):
    """The point that 32 bytes encode, or None; only the canonical encoding of a point is taken (RFC 8032 section 5.1.3)."""
    number = int.from_bytes(text, "little")
    y, odd = number & (SIGN - 1), number >> 255
    if len(text) != 32 or y >= P:
        return None
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if (v * x * x - u) % P != 0:
        x = x * SQRT_M1 % P
        if (v * x * x - u) % P != 0:
            return None
    if x == 0 and odd:
        return None
    if x & 1 != odd:
        x = P - x
    return (x, y, 1, x * y % P)


def refused(text):
    """Whether these 32 bytes are no canonical encoding (y >= p), or one of a point of small order."""
    y = int.from_bytes(text, "little") & (SIGN - 1)
    return len(text) != 32 or y >= P or y in SMALL_ORDER_Y


def strict(key, signature):
    """What strictness asks before the equation is looked at. A library that is laxer needs these as well."""
    return (len(signature) == 64 and int.from_bytes(signature[32:], "little") < L
            and not refused(key) and not refused(signature[:32]))


def table(point):
    """64 rows; row i holds 0, 1, ..., 15 times 16**i times the point, so that a product is 64 additions and no doubling."""
    rows = []
    for _ in range(64):
        row = [ZERO]
        for _ in range(15):
            row.append(add(row[-1], point))
        rows.append(row)
        point = add(row[-1], point)
    return rows


def times(rows, scalar, start=ZERO):
    """start + scalar * point, for a scalar below 2**256."""
    for row in rows:
        if scalar & 15:
            start = add(start, row[scalar & 15])
        scalar >>= 4
    return start


BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
BASE_TABLE = table(BASE)
_tables = {}  # public key -> table of -A, or None


def key_table(key):
    if key not in _tables:
        if len(_tables) >= 64:
            _tables.clear()
        point = decode(key)
        _tables[key] = point and table(negative(point))
    return _tables[key]


def verify(key, message, signature):
    """Whether the 64 bytes of `signature` hold for `message` under the 32 bytes of `key`."""
    key, signature = bytes(key), bytes(signature)
    if not strict(key, signature):
        return False
    rows = key_table(key)
    if rows is None:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    s = int.from_bytes(signature[32:], "little")
    return encode(times(rows, k, times(BASE_TABLE, s))) == signature[:32]


# RFC 8032 section 7.1: name, public key, message, signature
VECTORS = [
    ("1", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
     "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"),
    ("2", "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
     "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
    ("3", "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
     "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"),
    ("1024", "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
     "08b8b2b733424243760fe426a4b54908632110a66c2f6591eabd3345e3e4eb98fa6e264bf09efe12ee50f8f54e9f77b1"
     "e355f6c50544e23fb1433ddf73be84d879de7c0046dc4996d9e773f4bc9efe5738829adb26c81b37c93a1b270b20329d"
     "658675fc6ea534e0810a4432826bf58c941efb65d57a338bbd2e26640f89ffbc1a858efcb8550ee3a5e1998bd177e93a"
     "7363c344fe6b199ee5d02e82d522c4feba15452f80288a821a579116ec6dad2b3b310da903401aa62100ab5d1a36553e"
     "06203b33890cc9b832f79ef80560ccb9a39ce767967ed628c6ad573cb116dbefefd75499da96bd68a8a97b928a8bbc10"
     "3b6621fcde2beca1231d206be6cd9ec7aff6f6c94fcd7204ed3455c68c83f4a41da4af2b74ef5c53f1d8ac70bdcb7ed1"
     "85ce81bd84359d44254d95629e9855a94a7c1958d1f8ada5d0532ed8a5aa3fb2d17ba70eb6248e594e1a2297acbbb39d"
     "502f1a8c6eb6f1ce22b3de1a1f40cc24554119a831a9aad6079cad88425de6bde1a9187ebb6092cf67bf2b13fd65f270"
     "88d78b7e883c8759d2c4f5c65adb7553878ad575f9fad878e80a0c9ba63bcbcc2732e69485bbc9c90bfbd62481d9089b"
     "eccf80cfe2df16a2cf65bd92dd597b0707e0917af48bbb75fed413d238f5555a7a569d80c3414a8d0859dc65a46128ba"
     "b27af87a71314f318c782b23ebfe808b82b0ce26401d2e22f04d83d1255dc51addd3b75a2b1ae0784504df543af8969b"
     "e3ea7082ff7fc9888c144da2af58429ec96031dbcad3dad9af0dcbaaaf268cb8fcffead94f3c7ca495e056a9b47acdb7"
     "51fb73e666c6c655ade8297297d07ad1ba5e43f1bca32301651339e22904cc8c42f58c30c04aafdb038dda0847dd988d"
     "cda6f3bfd15c4b4c4525004aa06eeff8ca61783aacec57fb3d1f92b0fe2fd1a85f6724517b65e614ad6808d6f6ee34df"
     "f7310fdc82aebfd904b01e1dc54b2927094b2db68d6f903b68401adebf5a7e08d78ff4ef5d63653a65040cf9bfd4aca7"
     "984a74d37145986780fc0b16ac451649de6188a7dbdf191f64b5fc5e2ab47b57f7f7276cd419c17a3ca8e1b939ae49e4"
     "88acba6b965610b5480109c8b17b80e1b7b750dfc7598d5d5011fd2dcc5600a32ef5b52a1ecc820e308aa342721aac09"
     "43bf6686b64b2579376504ccc493d97e6aed3fb0f9cd71a43dd497f01f17c0e2cb3797aa2a2f256656168e6c496afc5f"
     "b93246f6b1116398a346f1a641f3b041e989f7914f90cc2c7fff357876e506b50d334ba77c225bc307ba537152f3f161"
     "0e4eafe595f6d9d90d11faa933a15ef1369546868a7f3a45a96768d40fd9d03412c091c6315cf4fde7cb68606937380d"
     "b2eaaa707b4c4185c32eddcdd306705e4dc1ffc872eeee475a64dfac86aba41c0618983f8741c5ef68d3a101e8a3b8ca"
     "c60c905c15fc910840b94c00a0b9d0",
     "0aab4c900501b3e24d7cdf4663326a3a87df5e4843b2cbdb67cbf6e460fec350"
     "aa5371b1508f9f4528ecea23c436d94b5e8fcd4f681e30a6ac00a9704a188a03"),
    ("SHA(abc)", "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
     "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
     "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
     "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
     "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"),
]


def self_test(check=verify):
    """Raises AssertionError unless `check` accepts what it must and refuses what it must."""
    for name, key, message, signature in VECTORS:
        key, message, signature = map(bytes.fromhex, (key, message, signature))
        assert check(key, message, signature), name
        assert not check(key, message + b"\0", signature), name
        for bit in range(0, 512, 7):
            bad = bytearray(signature)
            bad[bit >> 3] ^= 1 << (bit & 7)
            assert not check(key, message, bytes(bad)), (name, bit)
        s = int.from_bytes(signature[32:], "little") + L
        assert not check(key, message, signature[:32] + s.to_bytes(32, "little")), name + ": S + L"
        assert not check(key, message, signature[:63]) and not check(key, message, signature + b"\0"), name

    # the points of small order: there are eight, and the five values of y are theirs
    torsion = [q for y in SMALL_ORDER_Y for odd in (0, SIGN) for q in [decode((y | odd).to_bytes(32, "little"))] if q]
    assert len(torsion) == 8
    for q in torsion:
        for _ in range(3):
            q = add(q, q)
        assert encode(q) == encode(ZERO)
    assert encode(times(BASE_TABLE, L)) == encode(ZERO) and encode(times(BASE_TABLE, L + 1)) == encode(BASE)

    # signatures by somebody who chooses the points: a*B + T signs with r*B + U
    def sign(a, t, r, u, message):
        key, big_r = encode(add(times(BASE_TABLE, a), t)), encode(add(times(BASE_TABLE, r), u))
        k = int.from_bytes(hashlib.sha512(big_r + key + message).digest(), "little") % L
        return k, key, big_r + ((r + k * a) % L).to_bytes(32, "little")

    k, key, signature = sign(12345, ZERO, 67890, ZERO, b"plain")
    assert check(key, b"plain", signature)
    order8 = [q for q in torsion if q[1] == Y8][0]
    accepted = 0
    for n in range(64):  # a key with a part of small order: holds where k * T + U vanishes, whatever the cofactor would forgive
        message = b"mixed %d" % n
        k, key, signature = sign(12345, order8, 67890, ZERO, message)
        assert check(key, message, signature) == (k % 8 == 0), n
        accepted += k % 8 == 0
    assert 0 < accepted < 64
    for q in torsion:
        k, key, signature = sign(0, q, 5, ZERO, b"small A")
        assert not check(key, b"small A", signature)
        k, key, signature = sign(5, ZERO, 0, q, b"small R")
        assert not check(key, b"small R", signature)
    # y >= p: the same points written in another way
    for y in range(19):
        for odd in (0, SIGN):
            other = (y + P | odd).to_bytes(32, "little")
            assert decode(other) is None and refused(other)
            assert not check(other, b"", bytes(64)) and not check(key, b"", other + bytes(32))
    # no point at all
    assert decode((2).to_bytes(32, "little")) is None
    assert not check((2).to_bytes(32, "little"), b"", bytes.fromhex(VECTORS[0][3]))
    # x = 0 with the sign of an odd x
    assert decode((1 | SIGN).to_bytes(32, "little")) is None and refused((1 | SIGN).to_bytes(32, "little"))


if __name__ == "__main__":
    self_test()
    print("ok")
