# Writes OUT, a C file that holds the bytes of FILE as the array NAME, aligned as what drivers load must be.
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* Made by scripts/embed-image.cmake. */\nextern const unsigned char ${NAME}[];\n"
   "_Alignas(16) const unsigned char ${NAME}[] = {\n${bytes}};\n")
