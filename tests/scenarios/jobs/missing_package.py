"""A job that imports a package that is not installed: it dies before it reads its first record."""

import no_such_package_anywhere

no_such_package_anywhere.main()
