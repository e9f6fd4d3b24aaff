"""Operations by name; knows no request and no tree."""
