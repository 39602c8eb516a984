# Measures a city: the line in measured.txt is the effect.
echo "$1" >> measured.txt
printf '{"city": "%s", "letters": %s, "unit": "%s"}\n' "$1" "${#1}" "$2"
